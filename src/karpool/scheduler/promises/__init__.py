"""Promises: capacity that is reserved until the pods run on nodes. Start with `promise`, then `ledger`."""
