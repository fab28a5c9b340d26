"""Takes replicas that cannot start off their clusters. Start with `descheduler`."""
