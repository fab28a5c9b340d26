"""Nodes joined with their claims, the room on them, and nodes on their way. Start with `state_node`."""
