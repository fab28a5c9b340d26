"""Typed requests to the API server. Start with `client`."""
