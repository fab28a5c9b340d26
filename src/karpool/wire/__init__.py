"""The gRPC protocol between schedulers and estimators, for all supported Karmada versions.

`requests` holds plain values; `client_protocol` and `server_protocol` convert them to bytes and back.
`proto/` is generated.

Start with `requests`. Imports `model`.
"""
