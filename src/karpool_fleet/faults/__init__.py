"""What goes wrong on purpose: faults of a fleet file or a test, drawn from a seed. Start in `faults`."""
