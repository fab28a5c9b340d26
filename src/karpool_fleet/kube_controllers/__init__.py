"""Controllers of kube-controller-manager for nodes, quotas, volumes and resource claims."""
