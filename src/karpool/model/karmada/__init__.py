"""Karmada's bindings, placements and member clusters. Start with `binding`."""
