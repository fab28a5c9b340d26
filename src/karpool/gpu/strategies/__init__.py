"""Chooses among the fitting devices. Start with `strategy`."""
