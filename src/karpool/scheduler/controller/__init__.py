"""The imperative shell: watches, writes, reports. Start with `controller`, then `reconciler`."""
