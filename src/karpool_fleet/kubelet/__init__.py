"""Kubelets without containers: machines become nodes, and pods start, become ready and end."""
