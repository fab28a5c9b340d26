"""Karpenter's own disruption of nodes: emptiness, drift, multi-node and single-node consolidation."""
