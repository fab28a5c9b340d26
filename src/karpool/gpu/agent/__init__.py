"""Reads the GPUs of its machine, and publishes them unless another component does. Start with `machine`."""
