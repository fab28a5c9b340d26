"""Member clusters: how they join, their status in the control plane, taints and evictions."""
