"""What is done with the objects of one kind: when one comes or changes, goes, or cannot be read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.held_objects import HeldObjects
from karpool.cluster.kinds import ClusterKind
from karpool.cluster.problems import UnreadableObjects
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey

NoteProblem = Callable[[ObjectKey, bytes, Invalid, float], None]


@dataclass(frozen=True, slots=True)
class ObjectReader:
    put: Callable[[ObjectKey, Any, float], None]
    drop: Callable[[ObjectKey, float], None]
    unreadable: NoteProblem


def of_room(room: ClusterRoom, kind: ClusterKind) -> ObjectReader:
    reader = room.reader(kind.resource.kind)
    return ObjectReader(
        lambda key, obj, now: reader.upsert(obj),
        lambda key, now: reader.remove(key.namespace, key.name),
        lambda key, raw, error, now: reader.unreadable(key, raw, error),
    )


def of_drivers(room: ClusterRoom, kind: ClusterKind) -> ObjectReader:
    name = kind.resource.kind
    return ObjectReader(
        lambda key, obj, now: room.put_dra(name, key, obj),
        lambda key, now: room.drop_dra(name, key),
        lambda key, raw, error, now: room.close_dra(name, key, error.reason),
    )


def holder(held: HeldObjects, problems: UnreadableObjects, kind: ClusterKind) -> ObjectReader:
    """Held as it is, for those who can read it."""
    held.hold(kind)

    def put(key: ObjectKey, obj: Any, now: float) -> None:
        held.put(kind, key, obj)
        problems.clear(kind.resource.kind, str(key))

    def drop(key: ObjectKey, now: float) -> None:
        held.drop(kind, key)
        problems.clear(kind.resource.kind, str(key))

    return ObjectReader(put, drop, noted_problem(problems, kind))


def noted_problem(problems: UnreadableObjects, kind: ClusterKind) -> NoteProblem:
    """What was known of it stays, and the problem is said."""

    def note(key: ObjectKey, raw: bytes, error: Invalid, now: float) -> None:
        problems.add(kind.resource.kind, str(key), error)

    return note


def unreadable_as_none(reader: ObjectReader) -> ObjectReader:
    """It is there, and nobody can tell what it says."""

    def note(key: ObjectKey, raw: bytes, error: Invalid, now: float) -> None:
        reader.put(key, None, now)
        reader.unreadable(key, raw, error, now)

    return replace(reader, unreadable=note)


def and_then(reader: ObjectReader, then: Callable[[], None]) -> ObjectReader:
    """Something follows from all objects of the kind together."""

    def put(key: ObjectKey, obj: Any, now: float) -> None:
        reader.put(key, obj, now)
        then()

    def drop(key: ObjectKey, now: float) -> None:
        reader.drop(key, now)
        then()

    return ObjectReader(put, drop, reader.unreadable)


def both_readers(first: ObjectReader, second: ObjectReader) -> ObjectReader:
    def put(key: ObjectKey, obj: Any, now: float) -> None:
        second.put(key, obj, now)
        first.put(key, obj, now)

    def drop(key: ObjectKey, now: float) -> None:
        first.drop(key, now)
        second.drop(key, now)

    return ObjectReader(put, drop, first.unreadable)
