"""Kubelets without containers: machines become nodes, and pods start, get ready and end in time."""
