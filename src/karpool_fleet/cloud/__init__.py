"""A simulated cloud: machines with prices, stock and delays. Start with `cloud`."""
