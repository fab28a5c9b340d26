"""Nodes, pods, volumes, workloads. Start with `pod_shape`: what a pod requests."""
