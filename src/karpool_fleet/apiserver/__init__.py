"""A Kubernetes API server in memory, with a journal on disk if asked for.

`serve.server.ApiServer.handle` is a function from request to response: start there. `serve` puts it on
the network or calls it in process, `verbs` carry requests out on `storage`, `kinds` says which kinds
there are and `schema` what their objects must look like; `objects` holds what happens to objects besides
(defaults, garbage, budgets), `patches`, `printing` and `documents` what their names say.
docs/apiserver.md lists what it does.
"""
