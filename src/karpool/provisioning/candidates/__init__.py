"""Which node candidate to request next, after failed attempts. Start with `ladder`, then `attempts`."""
