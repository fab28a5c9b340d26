"""The values that all packages use: quantities, Kubernetes, Karpenter and Karmada objects, devices, prices.

API objects are partial structs: they are read, never written back. Start with `kubernetes/pod_shape` (what a
pod requests) and `requirements` (the one matcher). No clock, and no I/O except for the shipped price list.
Imports nothing of Karpool.
"""
