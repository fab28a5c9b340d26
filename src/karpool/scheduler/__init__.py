"""Places Karmada bindings on clusters, and promises the room so that it is given once.

`cycle/` decides, `promises/` remembers, `controller/` writes.
Start with `cycle/cycle`, then `promises/ledger`.
`descheduler/` takes back replicas that cannot start.
Imports `wire`, `manager` and below; no other capability.
"""
