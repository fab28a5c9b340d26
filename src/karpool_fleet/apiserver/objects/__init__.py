"""What objects need besides storage: identity, defaults, rules between fields, and what follows from writes.

`cluster.ServedCluster` is what every verb is given; start there. `garbage`, `namespaces`, `expiry` and
`disruption` follow writes in the `background`.
"""
