"""Values as machine-readable documents: keys in camelCase, as in Kubernetes.

Only field names change their case; keys of mappings are data (labels, resources, names of nodes).
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec

from karpool.model.errors import Invalid


def document_of(value: Any, *, old_keys: bool = False) -> Any:
    """Return a value as a document.

    `old_keys`: fields that were in snake_case until 0.2 are also written in that form for one more release,
    so that scripts can be adapted.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        encoded = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return _fields_of({name: getattr(value, field) for name, field in encoded}, old_keys=old_keys)
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return _fields_of(named, old_keys=old_keys)
    if isinstance(value, Mapping):
        return {document_of(key): document_of(inner, old_keys=old_keys) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [document_of(inner, old_keys=old_keys) for inner in value]
    return value


def _fields_of(named: Mapping[str, Any], *, old_keys: bool) -> dict[str, Any]:
    documents = {name: document_of(inner, old_keys=old_keys) for name, inner in named.items()}
    return camel_case(documents, old_keys=old_keys)


def camel_case(named: Mapping[str, Any], *, old_keys: bool = False) -> dict[str, Any]:
    """Return one level with its keys in camelCase."""
    content: dict[str, Any] = {}
    for name, value in named.items():
        content[key_of(name)] = value
        if old_keys and "_" in name:
            content[name] = value
    return content


def key_of(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def check_old_keys(value: Any, path: str) -> None:
    """Raise Invalid if an old key and the new key beside it differ, because only one of them was edited."""
    if isinstance(value, dict):
        for key, inner in value.items():
            new = key_of(key) if isinstance(key, str) else key
            if new != key and new in value and value[new] != inner:
                raise Invalid(
                    f"{path}.{new}", value[new], f"differs from {key} beside it; write the same in both"
                )
            check_old_keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            check_old_keys(inner, f"{path}[{index}]")
