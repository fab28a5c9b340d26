"""Eligible nodes of DaemonSets, computed when nodes change and not per pod.

The shared kernel matches them. It is fed only with nodes, and only with the fields that matter: a heartbeat
changes nothing here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster_room import ClusterRoom
from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.model.kubernetes.workload import pod_template
from karpool.model.taints import NO_SCHEDULE, Toleration
from karpool.packing.feasibility import selected, tolerates

# Taints that only keep new pods away do not evict a running pod.
_STAY = Toleration(operator="Exists", effect=NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class EligibleDaemonNodes:
    wanted: frozenset[str] = frozenset()  # should have a pod
    tolerable: frozenset[str] = frozenset()  # may keep the one they have
    known: frozenset[str] = frozenset()


NO_NODES = EligibleDaemonNodes()


class DaemonNodes:
    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._state = ClusterRoom(volumes=False)
        self._version = 0
        self._known: frozenset[str] | None = None
        self._cache: dict[ObjectKey, tuple[int, str, int, EligibleDaemonNodes]] = {}

    def apply(self, changes: Sequence[ObjectChange[Node]], /) -> None:
        relevant = False
        for change in changes:
            if change.type == "DELETED":
                self._state.remove_node(change.key.name)
            elif change.object is not None:
                if change.old is not None and _same(change.old, change.object):
                    continue
                self._state.upsert_node(change.object)
            relevant = True
        if relevant:
            self._version += 1
            self._known = None
            self._on_change()

    def eligible(self, key: ObjectKey, obj: Object) -> EligibleDaemonNodes:
        """Return the eligible nodes. Raises Invalid if the template cannot be parsed."""
        meta = obj["metadata"]
        generation = meta.get("generation", 0)
        held = self._cache.get(key)
        if held is not None and held[:3] == (self._version, meta["uid"], generation):
            return held[3]
        places = self._find(shape_of(pod_template({**obj, "kind": "DaemonSet"}).pod))
        self._cache[key] = (self._version, meta["uid"], generation, places)
        return places

    def forget(self, key: ObjectKey) -> None:
        self._cache.pop(key, None)

    def _find(self, shape: PodShape) -> EligibleDaemonNodes:
        snapshot = self._state.snapshot()
        names = snapshot.nodes.names
        if self._known is None:
            self._known = frozenset(names)
        chosen = selected(snapshot, shape)
        starts = chosen & tolerates(snapshot.nodes, shape.tolerations)
        stays = chosen & tolerates(snapshot.nodes, (*shape.tolerations, _STAY))
        return EligibleDaemonNodes(
            frozenset(names[row] for row in starts.nonzero()[0].tolist()),
            frozenset(names[row] for row in stays.nonzero()[0].tolist()),
            self._known,
        )


def _same(old: Node, new: Node) -> bool:
    return (
        old.metadata.uid == new.metadata.uid
        and old.labels == new.labels
        and old.spec.taints == new.spec.taints
        and old.spec.unschedulable == new.spec.unschedulable
    )
