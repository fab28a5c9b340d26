"""Scenarios played to their end: `scenario_file` describes one, `engine` plays it.

`arrivals` and `traces` bring objects, `cluster_recorder` sees what happens, `measurements` adds it up to
`figures`.
"""
