"""A read-only web page of the fleet, and the JSON API behind it.

`pages/` turns snapshots, plans and records into the structs of `api/views`.
Start with `api/endpoints`, then `pages/collector`.
Nothing here writes to a cluster.
Imports the capabilities and below.
"""
