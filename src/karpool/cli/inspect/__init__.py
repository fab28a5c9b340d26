"""Commands that read: plan, capacity, explain, get, top. Start with `plan`."""
