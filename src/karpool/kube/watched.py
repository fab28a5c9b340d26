"""Kinds that somebody needs to see, whoever delivers them: an informer, one list, or a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from karpool.cluster.changes import ChangeSink, ObjectChange
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions

log = structlog.get_logger(__name__)

T = TypeVar("T")


class EachSink(Generic[T]):
    """Hands changes over one by one; one that cannot be handled does not stop the rest."""

    def __init__(self, handle: Callable[[ObjectChange[T]], None]) -> None:
        self._handle = handle

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        for change in changes:
            try:
                self._handle(change)
            except Exception:
                log.exception("change not handled", object=str(change.key))


@dataclass(frozen=True, slots=True)
class WatchedKind(Generic[T]):
    """A kind and who is told of every object of it, on the event loop.

    With `optional`, a cluster that does not serve the kind is one that has no such objects; otherwise
    whoever asked waits for it. A kind that is served and may not be read, or fails, is waited for, unless
    it only `refines` the answers of who asked: then they are given without, and say so.
    """

    resource: ApiResource
    into: type[T]
    sink: ChangeSink[T]
    selection: ListOptions = ALL
    optional: bool = False
    refines: bool = False
    look_out_seconds: float | None = None  # the most between two looks for a kind that is not there
