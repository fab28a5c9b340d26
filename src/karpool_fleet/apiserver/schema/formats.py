"""The `format`s of OpenAPI strings and numbers that the API server checks.

Unknown formats accept everything, as upstream. Each check takes a value of the right JSON type
and answers whether it has the format.
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

from karpool.model import quantity
from karpool.model.errors import Invalid

_DATE_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}([.,]\d{1,9})?([Zz]|[+-]\d{2}:?\d{2})\Z", re.ASCII
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}\Z")
_HOSTNAME = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\Z"
)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\Z")
_MAC = re.compile(r"([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\Z")
# Go's ParseDuration, and the word forms of the OpenAPI library ("3 days").
_DURATION = re.compile(
    r"[+-]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*"
    r"|[0-9]+ ?(ns|us|ms|s|m|h|d|w|second|minute|hour|day|week)s?)\Z"
)


def _date_time(text: str) -> bool:
    if not _DATE_TIME.match(text):
        return False
    try:
        datetime.fromisoformat(text[:19].replace(" ", "T").upper())
    except ValueError:
        return text[17:19] == "60"  # a leap second
    return True


def _date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return len(text) == 10


def _byte(text: str) -> bool:
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _address(version: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            return ipaddress.ip_address(text).version == version
        except ValueError:
            return False

    return check


def _cidr(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text


def _uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme or text.startswith("/"))


def _quantity(text: Any) -> bool:
    try:
        quantity.milli_value(text)
    except Invalid:
        return False
    return True


STRING_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _date_time,
    "datetime": _date_time,
    "date": _date,
    "byte": _byte,
    "ipv4": _address(4),
    "ipv6": _address(6),
    "cidr": _cidr,
    "uri": _uri,
    "uuid": lambda text: bool(_UUID.match(text)),
    "hostname": lambda text: len(text) <= 255 and bool(_HOSTNAME.match(text)),
    "email": lambda text: bool(_EMAIL.match(text)),
    "mac": lambda text: bool(_MAC.match(text)),
    "duration": lambda text: bool(_DURATION.match(text)),
    "quantity": _quantity,
}

INTEGER_BOUNDS: dict[str, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
INT64 = INTEGER_BOUNDS["int64"]
