"""Simulation: `scenario_file` describes a scenario, and `engine` runs it to its end.

`arrivals` and `traces` create objects, `cluster_recorder` observes the clusters, and `measurements` sums up
`figures`.
"""
