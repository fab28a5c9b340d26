"""Embedded clusters: API server, cloud, Karpenter, autoscaler, scheduler, kubelet, Karmada, faults, tour.
Real clients can talk to them; Karpool's controllers run in them unchanged.
Start with `clusters/live`, then `apiserver/serve/server`.
Not part of the controllers' image.
Imports `karpool`; `karpool` imports it only in `cli/embedded`.
"""
