"""What is told about the objects of a kind, whoever delivers it: an informer, one list, or a file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ListOptions, ObjectKey
from karpool.model.kubernetes.meta import decode

T = TypeVar("T")

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
UNREADABLE = "UNREADABLE"
WHOLE_KIND = ObjectKey("", "*")  # no object can be called that: all of a kind that may not be listed


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
    object stays what it was. One with a true `takes_whole_kind` is told that the kind may not be listed
    (UNREADABLE of `WHOLE_KIND`), and when it may (DELETED); to others such a kind is empty.
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


def change_of_raw(raw: Any, key: ObjectKey, struct: type[Any]) -> ObjectChange[Any]:
    """An object of a file, as an informer would tell of it."""
    if struct is dict:
        return ObjectChange(ADDED, key, raw)
    try:
        return ObjectChange(ADDED, key, decode(raw, struct))
    except Invalid as error:
        shown = f"{error.path}: {error.value!r:.120}: {error.reason}" if error.path else error.reason
        return ObjectChange(UNREADABLE, key, None, raw=msgspec.json.encode(raw), reason=shown)


def is_selected(raw: Mapping[str, Any], key: ObjectKey, selection: ListOptions) -> bool:
    """The selections that kinds have: a namespace, a name, the phase of a pod, of an event its reason and
    whom it is about."""
    if selection.namespace is not None and key.namespace != selection.namespace:
        return False
    status = raw.get("status")
    phase = status.get("phase") if isinstance(status, Mapping) else None
    involved = raw.get("involvedObject")
    fields = {
        "metadata.name": key.name,
        "reason": raw.get("reason"),
        "status.phase": phase,
        "involvedObject.name": involved.get("name") if isinstance(involved, Mapping) else None,
    }
    for part in filter(None, selection.field_selector.split(",")):
        name, _, value = part.partition("=")
        negated = name.endswith("!")
        if (fields.get(name.rstrip("!")) == value) == negated:
            return False
    return True


def flattened(objects: Iterable[Any]) -> Iterable[Any]:
    for raw in objects:
        if isinstance(raw, Mapping) and str(raw.get("kind", "")).endswith("List") and "items" in raw:
            kind = str(raw["kind"]).removesuffix("List")
            for item in raw["items"] or ():
                # Items of a typed list do not repeat their kind.
                yield {"kind": kind, **item} if kind and isinstance(item, Mapping) else item
        else:
            yield raw


def identity(raw: Any) -> tuple[str, ObjectKey]:
    """Kind and key of an object that may be anything."""
    if not isinstance(raw, Mapping):
        return "", ObjectKey("", "")
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name, namespace = str(metadata.get("name", ""))[:253], str(metadata.get("namespace", ""))[:253]
    return str(raw.get("kind", ""))[:253], ObjectKey(namespace, name)
