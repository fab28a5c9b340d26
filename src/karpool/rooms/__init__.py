"""Room that travels: an estimator publishes what a cluster has left, a scheduler keeps copies and counts.

Both ends use the kernel of `packing`, and what they have in common beside it stands here: quotas, and what
of a promise has arrived.
"""
