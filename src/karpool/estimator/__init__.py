"""Answers how many replicas fit in a cluster: on existing nodes and on nodes an autoscaler would launch.

Sources add capacity, limits cap it (`plugins/interface`).
Start with `question`, then `plugins/framework` and `providers/karpenter`.
`serving/` is the gRPC server.
Imports `provisioning` and below; no other capability.
"""
