"""The kernel: does this pod fit on this node, how many fit, which new nodes would hold them, and why not.

The only implementation in the tree; slow twins live under `tests/`.
Start with `feasibility`, then `counting/count` and `new_nodes/pack`.
Pure functions over a `Room`; the tables are in `tables/`.
Imports `model`.
"""
