"""The ways in which nodes go: empty, deleted, replaced, several at once.
Start with `method`, the interface of all of them.
"""
