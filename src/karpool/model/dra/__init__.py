"""Devices of drivers (resource.k8s.io): slices, classes, claims, and the selectors they are chosen with."""
