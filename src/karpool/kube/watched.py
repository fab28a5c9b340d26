"""Kinds that somebody needs to see, whoever delivers them: an informer, one list, or a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from karpool.kube.watch.informer import ChangeSink, ObjectChange
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions, ObjectKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WatchedKind(Generic[T]):
    """A kind and who is told of every object of it, on the event loop.

    With `optional`, a cluster that does not know the kind is one that has no such objects; otherwise
    whoever asked waits for it.
    """

    resource: ApiResource
    into: type[T]
    sink: ChangeSink[T]
    selection: ListOptions = ALL
    optional: bool = False


class PutDropSink(Generic[T]):
    """Calls one function for objects as they are now, and one for those that are gone."""

    def __init__(self, put: Callable[[ObjectKey, T], None], drop: Callable[[ObjectKey], None]) -> None:
        self._put, self._drop = put, drop

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        for change in changes:
            if change.type == "DELETED" or change.object is None:
                self._drop(change.key)
            else:
                self._put(change.key, change.object)
