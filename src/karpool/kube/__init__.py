"""The Kubernetes client that every controller uses: requests, watches, informers, leases, events, snapshot
files.

HTTP or in-process transport; callers cannot tell them apart.
Start with `api/client` and `watch/informer`; errors are drawn in `errors`.
Time comes from `clock`.
Imports `cluster` (sinks), `model`.
"""
