"""Devices of drivers (DRA): which a pod's claims get on a node, as Kubernetes' allocator would choose.

Start at `allocator.allocate`: pools that a node sees, the claims of a pod, what is held already; an outcome.
"""
