"""Clusters as files: write, read, redact. Start with `writer`."""
