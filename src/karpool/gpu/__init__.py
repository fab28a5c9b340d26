"""Gives pods shares of GPUs, and requests one node of the right kind if none has capacity.

`allocation/` and `strategies/` choose devices, `scale_up/` requests nodes, `records/` stores what must
survive a restart.
Start with `allocation/allocator`, then `scale_up/step`.
Both are pure; `controller/` writes.
Imports `provisioning` and below; no other capability.
"""
