"""A Kubernetes API server in memory, with a journal on disk if asked for; docs/apiserver.md has the details.
Start with `serve/server`: `ApiServer.handle` is a function from request to response.
`serve/` puts it on the network, `verbs/` carry requests out on `storage/`, `kinds/` and `schema/` say what
objects look like, `objects/` what happens to them besides (defaults, garbage, budgets).
"""
