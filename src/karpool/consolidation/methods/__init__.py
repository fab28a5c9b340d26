"""The consolidation methods: emptiness, deletion, replacement, and several nodes at once.
Start with `method`, the interface of all of them.
"""
