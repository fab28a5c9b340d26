"""Looks at the GPUs of its machine, and publishes them where nobody else does. Start with `machine`."""
