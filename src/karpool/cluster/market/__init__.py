"""What instance types cost, and which could not be launched lately. Start with `market`."""
