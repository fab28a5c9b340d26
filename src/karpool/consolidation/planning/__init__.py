"""From a cluster to a plan: search moves, compare them, explain what stays.
Start with `plan`, then `planner` and `search`.
"""
