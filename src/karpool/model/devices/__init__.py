"""Devices, their shares, isolation, partitions, quotas, and the requests of pods.

Start with `request`, then `device`.
"""
