"""Object handling besides storage: identity, defaults, rules between fields, and effects of writes.

`cluster.ServedCluster` is passed to every verb; start there. `garbage`, `namespaces`, `expiry` and
`disruption` follow writes in the `background`.
"""
