"""Devices, shares of them, isolation, partitions, quotas, and what pods ask for.
Start with `request`, then `device`.
"""
