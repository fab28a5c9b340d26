"""Contracts with a cloud, and what a fleet costs under them. Start with `contract`."""
