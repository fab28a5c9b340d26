"""Addresses of HTTP servers."""

import re

_URL = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")


def is_http_url(text: str) -> bool:
    """Whether it is a plain HTTP address, without a password, a query or other parts."""
    return _URL.fullmatch(text) is not None
