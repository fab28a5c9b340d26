"""Dynamic resource allocation (DRA): which devices the claims of a pod get on a node.

The choice is the same as that of Kubernetes' allocator. Start at `allocator.allocate`: it takes the pools
that a node sees, the claims of a pod and the devices in use, and returns a `DraOutcome`.
"""
