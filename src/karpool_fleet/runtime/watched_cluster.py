"""Feeds a `Cluster` from the shared informers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from karpool.cluster.changes import DELETED, ObjectChange, change_of_raw
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ClusterKind
from karpool.kube.watch.feed import ClusterSink
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.runtime.informers import STRUCTS, Feed
from karpool_fleet.runtime.supervisor import Context

_NO_PODS: Mapping[ObjectKey, Pod] = {}


class ClusterFeeds:
    """Feeds the kinds of a cluster, except those that the caller feeds itself."""

    def __init__(self, context: Context, cluster: Cluster, *, but: Sequence[ClusterKind] = ()) -> None:
        self._cluster, self._clock = cluster, context.clock
        self._feeds: dict[ClusterKind, Feed[Any]] = {
            kind: context.informers.of(kind.resource, STRUCTS.get(kind.resource, dict))
            for kind in cluster.kinds
            if kind not in but
        }

    def start(self, then: Callable[[ClusterKind], None] = lambda kind: None) -> None:
        """Start to listen: changes go to the cluster, then `then` is called with their kind."""
        for kind, feed in self._feeds.items():
            feed.add_sink(_Telling(kind, ClusterSink(self._cluster, kind, self._clock), then))


class _Telling:
    takes_unreadable = True

    def __init__(self, kind: ClusterKind, sink: ClusterSink, then: Callable[[ClusterKind], None]) -> None:
        self._kind, self._sink, self._then = kind, sink, then

    def apply(self, changes: Sequence[ObjectChange[Any]], /) -> None:
        if self._kind.resource not in STRUCTS:  # shared informers hold these as dicts
            changes = [
                change
                if change.type == DELETED
                else change_of_raw(change.object, change.key, self._kind.struct)
                for change in changes
            ]
        self._sink.apply(changes)
        self._then(self._kind)


class PodsByNode:
    """The pods of every node, including ended ones, in order of arrival."""

    def __init__(self) -> None:
        self._held: dict[str, dict[ObjectKey, Pod]] = {}
        self._node_of: dict[ObjectKey, str] = {}

    def on(self, node: str) -> Mapping[ObjectKey, Pod]:
        return self._held.get(node, _NO_PODS)

    def nodes(self) -> list[str]:
        return list(self._held)

    def node_of(self, key: ObjectKey) -> str:
        """Return the node of a pod; empty if it has none."""
        return self._node_of.get(key, "")

    def take(self, change: ObjectChange[Pod]) -> bool:
        """Apply a change; return whether the pod got a node with it."""
        pod = None if change.type == DELETED else change.object
        before = self._node_of.get(change.key, "")
        after = pod.spec.node_name if pod is not None else ""
        if before and before != after:
            del self._held[before][change.key], self._node_of[change.key]
            if not self._held[before]:
                del self._held[before]
        if pod is not None and after:
            self._held.setdefault(after, {})[change.key] = pod
            self._node_of[change.key] = after
        return bool(after) and before != after
