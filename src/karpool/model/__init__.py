"""Values that everything else is made of: quantities, Kubernetes, Karpenter and Karmada objects, devices,
prices.

API objects are partial structs: they are read, never written back.
Start with `kubernetes/pod_shape` (what a pod asks for) and `requirements` (the one matcher).
No clock, and no I/O but for the shipped price list.
Imports nothing of Karpool.
"""
