"""DRA devices (resource.k8s.io): slices, classes, claims, and their selectors."""
