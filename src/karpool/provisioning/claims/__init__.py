"""How far NodeClaims have come, and when nodes are ready. Start with `claim_monitor`."""
