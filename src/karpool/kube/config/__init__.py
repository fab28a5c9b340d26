"""Kubeconfig files, credentials, TLS. Start with `kubeconfig`."""
