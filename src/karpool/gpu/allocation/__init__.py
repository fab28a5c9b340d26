"""Finds devices for requests and keeps the books. Pure.
Start with `allocator`, then `ledger`.
"""
