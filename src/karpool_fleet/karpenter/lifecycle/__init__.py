"""The life cycle of a NodeClaim up to an initialised node, and conditions of pools.

Start with `lifecycle`.
"""
