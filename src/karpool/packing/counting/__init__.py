"""How many replicas or sets fit on existing nodes. Start with `count`."""
