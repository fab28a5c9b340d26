"""Pods: what they take, who may not disturb them, and their volumes. Start with `pod_store`."""
