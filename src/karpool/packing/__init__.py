"""The scheduling kernel: whether a pod fits on a node, how many fit, which new nodes to launch, and why not.

This is the only implementation in the tree; slow reference versions live under `tests/`. Start with
`feasibility`, then `counting/count` and `new_nodes/pack`. The functions are pure and work on a `Room`; the
tables are in `tables/`. Imports `model`.
"""
