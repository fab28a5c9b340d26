"""Fault injection: faults of a fleet file or a test. Start with `faults`."""
