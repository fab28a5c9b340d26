"""The gRPC server, one member cluster behind each port or name. Start with `server`, then `member`."""
