"""One scheduling decision, pure, in numbered steps. Start with `cycle`, then `schedule`."""
