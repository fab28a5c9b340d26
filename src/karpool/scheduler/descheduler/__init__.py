"""Takes back replicas that cannot start. Start with `descheduler`."""
