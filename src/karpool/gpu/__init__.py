"""Gives pods shares of GPUs, and requests one node of the right kind when none has room.

`allocation/` and `strategies/` choose devices, `scale_up/` gets nodes, `records/` survives restarts.
Start with `allocation/allocator`, then `scale_up/step`.
Both are pure; `controller/` acts.
Imports `provisioning` and below; no other capability.
"""
