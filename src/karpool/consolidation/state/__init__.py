"""The state of the cluster during a search: accepted moves are applied, and everything can be undone.
Start with `planning_state`.
"""
