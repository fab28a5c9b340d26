"""HTTP transport, rate limits, retries and Prometheus queries. Start with `rest`."""
