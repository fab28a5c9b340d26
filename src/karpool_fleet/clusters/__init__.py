"""Embedded clusters: how they are described, put together, timed and run.

`fleet` is all clusters of a `fleet_file`, `live` one of them with its components and cloud, `embedded`
an API server with components, `runtime` what runs and restarts these. `clock` has time that is real,
scaled or manual.
"""
