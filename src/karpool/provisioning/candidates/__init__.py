"""What to request next, after what failed. Start with `ladder`, then `attempts`."""
