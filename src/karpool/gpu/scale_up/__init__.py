"""From pending workers to nodes: triage, candidates, units, hand-off. Pure.
Start with `step`.
"""
