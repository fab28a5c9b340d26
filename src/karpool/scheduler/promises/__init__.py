"""Room that is promised until pods are there. Start with `promise`, then `ledger`."""
