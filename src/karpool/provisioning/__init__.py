"""Requests nodes from an autoscaler, and follows them until they are ready or have failed.

Never creates machines, Nodes or NodeClaims.
Start with `node_request`, then `placeholders/backend` and `claims/claim_monitor`.
Used by `gpu` and `consolidation`.
Imports `manager`, `kube` and below.
"""
