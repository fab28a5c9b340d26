"""Kinds that somebody needs to see, whoever delivers them: an informer, one list, or a file."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from karpool.cluster.changes import ChangeSink
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions

T = TypeVar("T")


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
