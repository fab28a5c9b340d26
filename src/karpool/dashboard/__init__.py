"""A read-only web page of the fleet, and the JSON API behind it.

`pages/` turns snapshots, plans and records into the structs of `api/views`. Nothing here writes to a cluster.

Start with `api/endpoints`, then `pages/collector`. Imports the capabilities and below.
"""
