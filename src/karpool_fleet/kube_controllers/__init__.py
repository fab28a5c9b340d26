"""Controllers of kube-controller-manager that are not about workloads: nodes, quotas, volumes."""
