"""What is told about the objects of a kind, whoever delivers it: an informer, one list, or a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from karpool.model.kubernetes.api_resources import ObjectKey

T = TypeVar("T")

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
UNREADABLE = "UNREADABLE"


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """`object` is the newest known state; for DELETED it is the last one, or None if that was not kept.
    `old` is what it replaces, when objects are kept.

    UNREADABLE: the object is there, but its bytes (`raw`) are not what its kind should look like. It has
    no `object`, and whatever was known of it may no longer be true.
    """

    type: str  # ADDED, MODIFIED, DELETED, UNREADABLE
    key: ObjectKey
    object: T | None
    old: T | None = None
    raw: bytes = b""
    reason: str = ""


class ChangeSink(Protocol[T]):
    """Takes changes in batches: a page of a list, or what arrived together on a watch.

    One with a true `takes_unreadable` is also told of objects that cannot be read; to others such an
    object stays what it was.
    """

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None: ...


class PutDropSink(Generic[T]):
    """Calls one function for objects as they are now, and one for those that are gone."""

    def __init__(self, put: Callable[[ObjectKey, T], None], drop: Callable[[ObjectKey], None]) -> None:
        self._put, self._drop = put, drop

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        for change in changes:
            if change.type == DELETED or change.object is None:
                self._drop(change.key)
            else:
                self._put(change.key, change.object)
