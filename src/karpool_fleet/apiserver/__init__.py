"""A Kubernetes API server in memory, with an optional journal on disk; docs/apiserver.md has the details.

Start with `serve/server`: `ApiServer.handle` is a function from request to response. `serve/` puts it on the
network, `verbs/` execute requests on `storage/`, `kinds/` and `schema/` describe the objects, and `objects/`
adds what follows from writes (defaults, garbage collection, budgets).
"""
