"""The gRPC server, with one member cluster per port or name. Start with `server`, then `member`."""
