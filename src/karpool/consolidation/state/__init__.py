"""The cluster while a plan is searched: what was taken into it has happened, and anything can be taken back.
Start with `planning_state`.
"""
