"""Removes values that may be secret, and bulk, from objects of a snapshot.

Names are kept, values are removed. Position decides what is removed (an `env` list, a `command`, a
`userData`), at any depth, so that templates inside other objects are covered as well.
"""

from typing import Any

from karpool.kube.api.decoding import Object

REDACTED = "[redacted]"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

# The command of a container and its probes do not concern capacity.
_DROPPED = frozenset(
    ("command", "args", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "managedFields")
)
# Strings or maps of free content where people put credentials.
_BLANKED = frozenset(
    ("userData", "volumeAttributes", "options", "proxyHeader", "stringData", "binaryData", "parameters")
)


def redact(obj: Object) -> Object:
    """Return a copy that is safe to share. Raises RecursionError for very deep nesting."""
    cleaned = _clean(obj)
    assert isinstance(cleaned, dict)
    return cleaned


def _clean(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if not isinstance(value, dict):
        return value
    cleaned = {key: _clean_field(key, item) for key, item in value.items() if key not in _DROPPED}
    if value.get("kind") == "Secret":
        cleaned.pop("data", None)
    return cleaned


def _clean_field(key: str, value: Any) -> Any:
    if key in _BLANKED and isinstance(value, dict):
        return dict.fromkeys(value, REDACTED)
    if key in _BLANKED and isinstance(value, str):
        return REDACTED
    if key == "env" and isinstance(value, list):
        return [_without_value(item) for item in value]
    if key == "annotations" and isinstance(value, dict):
        return {name: text for name, text in value.items() if name != LAST_APPLIED}
    return _clean(value)


def _without_value(item: Any) -> Any:
    """Remove the value and keep `valueFrom`, which only names the source of a value."""
    if not isinstance(item, dict):
        return REDACTED
    cleaned = {key: _clean(part) for key, part in item.items() if key != "value"}
    return {**cleaned, "value": REDACTED} if item.get("value") else cleaned
