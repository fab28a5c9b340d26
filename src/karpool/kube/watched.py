"""Kinds that somebody needs to see, whoever delivers them: an informer, one list, or a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from karpool.kube.informer import Change, Sink
from karpool.kube.resource import ALL, Key, Resource, Selection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Watched(Generic[T]):
    """A kind and who is told of every object of it, on the event loop.

    With `optional`, a cluster that does not know the kind is one that has no such objects; otherwise
    whoever asked waits for it.
    """

    resource: Resource
    into: type[T]
    sink: Sink[T]
    selection: Selection = ALL
    optional: bool = False


class ObjectSink(Generic[T]):
    """Calls one function for objects as they are now, and one for those that are gone."""

    def __init__(self, put: Callable[[Key, T], None], drop: Callable[[Key], None]) -> None:
        self._put, self._drop = put, drop

    def apply(self, changes: Sequence[Change[T]], /) -> None:
        for change in changes:
            if change.type == "DELETED" or change.object is None:
                self._drop(change.key)
            else:
                self._put(change.key, change.object)
