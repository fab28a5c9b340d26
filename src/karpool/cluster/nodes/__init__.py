"""Nodes joined with their claims, free resources, and nodes that are starting. Start with `state_node`."""
