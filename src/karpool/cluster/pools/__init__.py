"""NodePools and what is left of their limits. Start with `pool_store`."""
