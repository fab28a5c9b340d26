"""Requests and responses: routes, bodies, status errors, and the ways to reach the server.

Start in `server`. `run` is `karpool apiserver`: certificates, token, journal and kubeconfig; `http` puts
a server on the network and `inprocess` calls it directly.
"""
