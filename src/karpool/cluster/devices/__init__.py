"""GPU devices, and who holds which share of which. Start with `device_store`."""
