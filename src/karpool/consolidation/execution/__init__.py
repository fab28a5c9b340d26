"""Executes a plan: validate again, mark nodes, request replacements, delete claims.
Start with `controller`, then `step` (pure) and `actuator` (writes).
"""
