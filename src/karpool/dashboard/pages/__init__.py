"""Turns snapshots, plans and records into the structs of the API. Start with `collector`."""
