"""The shell: looks, calls the pure steps, acts, reports. Start with `controller`."""
