"""Checks and experiments on the policies themselves, for `karpool verify-policy`.
Start with `properties`.
"""
