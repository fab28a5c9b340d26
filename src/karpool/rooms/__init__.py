"""Rooms: an estimator publishes the free capacity of its cluster, and a scheduler counts on its copies.

`publisher` is the estimator's side, `copied_rooms` the scheduler's side, `room_change` the messages between
them. Both sides use the kernel of `packing`. Quotas and arrived promises, which both need too, are here.
"""
