"""NodePools, NodeClaims, node classes and disruption budgets. Start with `objects`."""
