"""Commands that read: plan, capacity, explain, get, top, snapshot. Start with `plan`."""
