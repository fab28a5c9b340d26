"""GPU devices, and which pod uses which share. Start with `device_store`."""
