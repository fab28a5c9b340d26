"""Addresses of servers that are asked over HTTP."""

import re

_URL = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")


def is_http_url(text: str) -> bool:
    """Without a password, a query or anything else that addresses of Prometheus do not have."""
    return _URL.fullmatch(text) is not None
