"""Embedded clusters: their files, clocks and components.

`fleet` runs all clusters of a `fleet_file`, `live` is one cluster with its components and cloud, and
`embedded` is an API server with components. `clock` has real, scaled and manual time. Start with `live`.
"""
