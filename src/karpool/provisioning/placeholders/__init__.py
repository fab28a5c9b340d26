"""Objects that make an autoscaler launch a node: smart pods, buffers, provisioning requests.

Start with `backend`.
"""
