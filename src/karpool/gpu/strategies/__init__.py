"""Which of the fitting devices to take. Start with `strategy`."""
