"""Finds devices for requests and keeps the ledger of allocations. Pure.
Start with `allocator`, then `ledger`.
"""
