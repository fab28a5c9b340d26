"""Reads a field of a record, or an item of a list or map, that may be missing."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from karpool.model.cel.values import NONE, CelError, CelOptional, OpenMap


def field_of(record: Any, key: str) -> Any:
    if isinstance(record, dict):
        with suppress(KeyError):
            return record[key]
    raise CelError(f"reads {key}, which is not set")


def item_of(items: Any, index: Any) -> Any:
    if isinstance(items, dict) and isinstance(index, str | int) and not isinstance(index, bool):
        with suppress(KeyError):
            return items[index]
    if isinstance(items, list) and type(index) is int and 0 <= index < len(items):
        return items[index]
    raise CelError(f"reads [{index!r:.60}], which does not exist")


def has_field(record: Any, key: str) -> bool:
    return isinstance(record, OpenMap) or (isinstance(record, dict) and record.get(key) is not None)


def has_item(items: Any, index: Any) -> bool:
    if isinstance(items, list):
        return type(index) is int and 0 <= index < len(items)
    return isinstance(items, OpenMap) or (isinstance(items, dict) and index in items)


def read_optional(value: Any, read: Callable[[Any], Any], is_there: Callable[[Any], bool]) -> CelOptional:
    if isinstance(value, CelOptional):
        if not value.is_set:
            return NONE
        value = value.inner
    if not isinstance(value, dict | list):
        raise CelError(f"reads a field of {value!r:.60}")
    return CelOptional(True, read(value)) if is_there(value) else NONE
