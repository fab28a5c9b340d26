"""The progress of NodeClaims, and when nodes are ready. Start with `claim_monitor`."""
