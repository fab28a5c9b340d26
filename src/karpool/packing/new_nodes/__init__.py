"""Which new nodes would hold pods, and how many fit on them. Start with `pack`."""
