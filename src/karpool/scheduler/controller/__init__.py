"""The shell: watches bindings, writes placements, reports. Start with `controller`, then `reconciler`."""
