"""Topology spread and pod affinity. Start with `topology`."""
