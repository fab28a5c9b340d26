"""Kinds that a component needs, whatever delivers them: an informer, one list, or a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from karpool.cluster.changes import ChangeSink, ObjectChange
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions

log = structlog.get_logger(__name__)

T = TypeVar("T")


class EachSink(Generic[T]):
    """Passes changes on one by one; an error in one does not stop the others."""

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
    """A kind and the sink that receives every object of it, on the event loop.

    With `optional`, a kind that the cluster does not serve counts as a kind without objects; otherwise the
    consumer waits for it. The consumer also waits for a kind that is forbidden or fails, unless the kind only
    `refines` its answers: those are then given without it, and say so.
    """

    resource: ApiResource
    into: type[T]
    sink: ChangeSink[T]
    selection: ListOptions = ALL
    optional: bool = False
    refines: bool = False
    look_out_seconds: float | None = None  # longest interval between checks for a kind that is not served
