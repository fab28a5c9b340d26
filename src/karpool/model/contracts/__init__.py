"""What was contracted with a cloud, and what a fleet costs under it. Start with `contract`."""
