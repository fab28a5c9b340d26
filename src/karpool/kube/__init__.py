"""The Kubernetes client of every controller: requests, watches, informers, leases, events and snapshots.

A client works over HTTP or in process; callers see no difference. Start with `api/client` and
`watch/informer`; `errors` lists the errors. Time comes from `clock`.

Imports `cluster` (sinks) and `model`.
"""
