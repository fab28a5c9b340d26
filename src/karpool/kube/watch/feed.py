"""Informers for the kinds of a `Cluster`."""

from collections.abc import Sequence
from typing import Any

from karpool.cluster.aspects import NO_ASPECTS, Aspect
from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ClusterKind, Unreadable
from karpool.kube.clock import Clock
from karpool.kube.watched import WatchedKind


class ClusterSink:
    """Forwards the changes of one kind to a cluster."""

    takes_unreadable = True

    def __init__(self, cluster: Cluster, kind: ClusterKind, clock: Clock) -> None:
        self._cluster, self._kind, self._clock = cluster, kind, clock
        self.takes_whole_kind = kind.unreadable is Unreadable.CLOSES_DEVICES

    def unreadable(self) -> int:
        """Return the number of objects of the kind that exist and cannot be read, decoded or not."""
        return self._cluster.unreadable(self._kind)

    def apply(self, changes: Sequence[ObjectChange[Any]], /) -> None:
        self._cluster.apply(self._kind, changes, self._clock.now())


def cluster_watches(
    cluster: Cluster, clock: Clock, *, refining: Aspect = NO_ASPECTS
) -> list[WatchedKind[Any]]:
    """Return the kinds that an `InformerSet` has to watch for a cluster.

    Kinds that only serve `refining` aspects may be forbidden: answers are then given without them, and say
    so.
    """
    return [
        WatchedKind(
            kind.resource,
            kind.struct,
            ClusterSink(cluster, kind, clock),
            kind.selection,
            optional=kind.may_be_absent,
            refines=not kind.aspects & cluster.aspects & ~refining,
        )
        for kind in cluster.kinds
    ]
