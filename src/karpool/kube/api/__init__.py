"""Requests to the API server, typed. Start with `client`."""
