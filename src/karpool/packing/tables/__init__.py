"""The columns that the kernel computes on. Start with `room`."""
