"""HTTP server, access rules and change notices. Start with `app`."""
