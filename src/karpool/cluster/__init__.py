"""The state of one cluster: nodes joined with claims, pods, devices, budgets, prices, and our promises.

`Cluster` is fed one object at a time; `Cluster.snapshot()` is immutable and cheap. Start with `cluster`, then
`kinds` (the table of watched kinds) and `nodes/state_node`. No I/O, no clock: `now` is an argument. Imports
`packing`, `model`.
"""
