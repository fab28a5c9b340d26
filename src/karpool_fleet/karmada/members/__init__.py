"""Member clusters: how they join, what the control plane learns of them, taints and evictions."""
