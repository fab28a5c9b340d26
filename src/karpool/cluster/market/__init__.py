"""The prices of instance types, and recent launch failures. Start with `market`."""
