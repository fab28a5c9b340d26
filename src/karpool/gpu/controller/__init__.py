"""The imperative shell: observes, calls the pure steps, writes, reports. Start with `controller`."""
