"""The gRPC protocol between schedulers and estimators, for all supported Karmada versions.

Plain values in `requests`; bytes in `client_protocol` and `server_protocol`.
Start with `requests`.
`proto/` is generated.
Imports `model`.
"""
