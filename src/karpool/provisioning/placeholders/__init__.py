"""Objects that make an autoscaler launch a node: smart pods, buffers, requests.
Start with `backend`.
"""
