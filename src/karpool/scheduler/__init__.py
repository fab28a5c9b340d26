"""Places Karmada bindings on clusters, and reserves their capacity by promises, so that it is given once.

`cycle/` decides, `promises/` keeps the reservations, `controller/` writes.
Start with `cycle/cycle`, then `promises/ledger`.
`descheduler/` takes replicas that cannot start off their clusters.
Imports `wire`, `manager` and below; no other capability.
"""
