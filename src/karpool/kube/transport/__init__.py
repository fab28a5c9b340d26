"""How requests travel: HTTP or in-process, rate limits, retries. Start with `transport`."""
