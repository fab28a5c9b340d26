"""Makes a plan for a cluster: search moves, compare them, explain what stays.
Start with `plan`, then `planner` and `search`.
"""
