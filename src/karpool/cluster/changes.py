"""Changes of the objects of a kind, from any source: an informer, one list, or a file."""

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
WHOLE_KIND = ObjectKey("", "*")  # key of no object: all objects of a kind that may not be listed


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """One change of an object.

    `object` is the newest known state; for DELETED it is the last one, or None if it was not kept. `old` is
    the state before, if objects are kept.

    UNREADABLE: the object exists, but its bytes (`raw`) do not match its kind. It has no `object`, and what
    was known about it may no longer be true.
    """

    type: str  # ADDED, MODIFIED, DELETED, UNREADABLE
    key: ObjectKey
    object: T | None
    old: T | None = None
    raw: bytes = b""
    reason: str = ""


class ChangeSink(Protocol[T]):
    """Takes changes in batches: a page of a list, or the events that a watch delivered together.

    A sink with a true `takes_unreadable` also gets objects that cannot be read; for other sinks such an
    object keeps its last state. A sink with a true `takes_whole_kind` is told when the kind may not be listed
    (UNREADABLE of `WHOLE_KIND`) and when it may again (DELETED); for other sinks such a kind is empty.
    """

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None: ...


class PutDropSink(Generic[T]):
    """Calls one function for current objects, and one for deleted objects."""

    def __init__(self, put: Callable[[ObjectKey, T], None], drop: Callable[[ObjectKey], None]) -> None:
        self._put, self._drop = put, drop

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        for change in changes:
            if change.type == DELETED or change.object is None:
                self._drop(change.key)
            else:
                self._put(change.key, change.object)


def change_of_raw(raw: Any, key: ObjectKey, struct: type[Any]) -> ObjectChange[Any]:
    """Return an object of a file as the change that an informer would deliver."""
    if struct is dict:
        return ObjectChange(ADDED, key, raw)
    try:
        return ObjectChange(ADDED, key, decode(raw, struct))
    except Invalid as error:
        shown = f"{error.path}: {error.value!r:.120}: {error.reason}" if error.path else error.reason
        return ObjectChange(UNREADABLE, key, None, raw=msgspec.json.encode(raw), reason=shown)


def is_selected(raw: Mapping[str, Any], key: ObjectKey, selection: ListOptions) -> bool:
    """Whether an object matches the selections that kinds use.

    These are a namespace, a name, the phase of a pod, and the reason and the involved object of an event.
    """
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
    """Return kind and key of an object of any form."""
    if not isinstance(raw, Mapping):
        return "", ObjectKey("", "")
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name, namespace = str(metadata.get("name", ""))[:253], str(metadata.get("namespace", ""))[:253]
    return str(raw.get("kind", ""))[:253], ObjectKey(namespace, name)
