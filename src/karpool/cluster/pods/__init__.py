"""Pods: their requests, their disruption limits, and their volumes. Start with `pod_store`."""
