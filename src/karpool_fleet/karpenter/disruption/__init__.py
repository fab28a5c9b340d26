"""Karpenter's own disruption of nodes: emptiness, multi-node and single-node consolidation."""
