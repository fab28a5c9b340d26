"""Snapshot files of clusters: write, read, redact. Start with `writer`."""
