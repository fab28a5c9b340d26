"""Parses API paths and queries.

`parse` splits API paths into group, version, namespace, resource, name and subresource; `Query` reads
options, with errors that a client can act on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from karpool_fleet.apiserver.serve.status import bad_request

_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class Route:
    group: str
    version: str
    plural: str
    namespace: str | None = None  # None: all namespaces, or a cluster-scoped resource
    name: str = ""
    subresource: str = ""


def parse(path: str) -> Route | None:
    """Return the resource of a path; None if the path is not under a group and version."""
    parts = path.strip("/").split("/")
    match parts:
        case ["api", version, *rest]:
            return _resource("", version, rest)
        case ["apis", group, version, *rest]:
            return _resource(group, version, rest)
    return None


def _resource(group: str, version: str, parts: list[str]) -> Route | None:
    if not all(parts):
        return None
    match parts:
        case ["namespaces", name, subresource] if subresource in _NAMESPACE_SUBRESOURCES and not group:
            return Route(group, version, "namespaces", None, name, subresource)
        case ["namespaces", namespace, plural]:
            return Route(group, version, plural, namespace)
        case ["namespaces", namespace, plural, name]:
            return Route(group, version, plural, namespace, name)
        case ["namespaces", namespace, plural, name, *rest]:
            return Route(group, version, plural, namespace, name, "/".join(rest))
        case [plural]:
            return Route(group, version, plural)
        case [plural, name]:
            return Route(group, version, plural, None, name)
        case [plural, name, *rest]:
            return Route(group, version, plural, None, name, "/".join(rest))
    return None


class Query:
    """Query options. The last value of each parameter wins, except for lists."""

    __slots__ = ("_pairs", "_values")

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs
        self._values = dict(pairs)

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is None or value in ("", "false", "0", "f", "F", "False", "FALSE"):
            return False
        if value in ("true", "1", "t", "T", "True", "TRUE"):
            return True
        raise bad_request(f"{name}={value[:40]!r}: must be true or false")

    def number(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is None or value == "":
            return None
        if len(value) > 18 or not value.isascii() or not value.isdigit():
            raise bad_request(f"{name}={value[:40]!r}: must be a whole number, zero or more")
        return int(value)

    def choice(self, name: str, *allowed: str) -> str:
        value = self._values.get(name, "")
        if value and value not in allowed:
            raise bad_request(f"{name}={value[:40]!r}: must be one of {', '.join(allowed)}")
        return value
