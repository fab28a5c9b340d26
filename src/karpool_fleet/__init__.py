"""Embedded clusters: API server, cloud, Karpenter, autoscaler, scheduler, kubelet, Karmada, faults, tour.

Real clients can talk to them, and Karpool's controllers run in them unchanged. They are not part of the
controllers' image.

Start with `clusters/live`, then `apiserver/serve/server`. Imports `karpool`; `karpool` imports it only in
`cli/embedded`.
"""
