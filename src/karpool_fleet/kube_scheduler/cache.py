"""The scheduler's cache of the cluster, including its own decisions at once.

A pod that got a node is *assumed* there: its room is taken at once, until the pod is seen on a node or its
binding has failed. So room is never used twice, however late events come.
"""

from dataclasses import dataclass

import msgspec

from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import DELETED, ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import BUDGETS, NAMESPACES, NODES, PODS, ClusterKind
from karpool.kube.clock import Clock
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.tables.room import Room
from karpool_fleet.kube_scheduler.board import PlacementBoard


@dataclass(frozen=True, slots=True)
class Assumed:
    uid: str
    node: str


@dataclass(slots=True)
class Happened:
    """Changes since the last read."""

    nodes: dict[str, None]  # nodes that changed, or got or lost a pod
    topology: bool = False
    volumes: bool = False

    def __bool__(self) -> bool:
        return bool(self.nodes) or self.topology or self.volumes


class SchedulerCache:
    def __init__(self, clock: Clock) -> None:
        self.cluster = Cluster(Aspect.NAMESPACES | Aspect.VOLUMES | Aspect.BUDGETS | Aspect.DRA, shares=False)
        self._clock = clock
        self._room = self.cluster.room
        self._assumed: dict[ObjectKey, Assumed] = {}
        self._board: PlacementBoard | None = None
        self._happened = Happened({})

    def snapshot(self) -> Room:
        return self._room.snapshot()

    def board(self) -> PlacementBoard:
        """Return the board; it is the same one while only our own placements change it."""
        if self._board is None:
            self._board = PlacementBoard(self.snapshot())
        return self._board

    def shape_of(self, key: ObjectKey) -> PodShape | None:
        return self._room.shape_of(key.namespace, key.name)

    def take_happened(self) -> Happened:
        happened, self._happened = self._happened, Happened({})
        return happened

    # Assumptions

    def assumed(self, key: ObjectKey) -> Assumed | None:
        return self._assumed.get(key)

    def assume(self, key: ObjectKey, uid: str, shape: PodShape, row: int) -> str:
        """Place a pod on a row of the board; return the name of the node."""
        board = self.board()
        node = board.names[row]
        self._assumed[key] = Assumed(uid, node)
        self._room.put_pod(str(key), shape, node)
        board.place(shape, row)
        self._happened.topology = True
        return node

    def learn_bound(self, pod: Pod) -> None:
        """Record a pod that is on a node, although no event has reported it yet."""
        key = ObjectKey(pod.metadata.namespace, pod.name)
        assumed = self._assumed.get(key)
        if assumed is not None and assumed.node != pod.spec.node_name:
            self._touch(assumed.node)
        self._assumed[key] = Assumed(pod.metadata.uid, pod.spec.node_name)
        self._put_pod(key, pod)
        self._touch(pod.spec.node_name)

    def forget(self, key: ObjectKey, now: Pod | None) -> None:
        """Undo an assumed pod whose binding failed; `now` is the pod as known."""
        assumed = self._assumed.pop(key, None)
        if assumed is None:
            return
        self._put_pod(key, now)
        self._touch(assumed.node)

    # Events

    def pod_changed(self, change: ObjectChange[Pod]) -> None:
        key, pod = change.key, change.object
        before = self._room.version
        assumed = self._assumed.get(key)
        if change.type == DELETED or pod is None:
            if assumed is not None and (pod is None or pod.metadata.uid == assumed.uid):
                del self._assumed[key]
            self._put_pod(key, None)
        else:
            if assumed is not None:
                if pod.spec.node_name or pod.metadata.uid != assumed.uid:
                    del self._assumed[key]
                else:
                    pod = _placed(pod, assumed.node)
            self._put_pod(key, pod)
        if self._room.version != before:
            old = change.old if change.old is not None else change.object
            for name in (assumed.node if assumed else "", old.spec.node_name if old else ""):
                if name:
                    self._touch(name)
            if pod is not None and pod.spec.node_name:
                self._touch(pod.spec.node_name)

    def node_changed(self, change: ObjectChange[Node]) -> None:
        before = self._room.version
        self.cluster.apply(NODES, (change,), self._clock.now())
        if self._room.version != before:
            self._touch(change.key.name)

    def other_changed(self, kind: ClusterKind) -> None:
        """Handle a change of namespaces, claims, volumes or storage classes; budgets do not affect room."""
        if kind is not BUDGETS:
            self._board = None
            self._happened.topology = True
            self._happened.volumes = self._happened.volumes or kind is not NAMESPACES

    def _put_pod(self, key: ObjectKey, pod: Pod | None) -> None:
        change = ObjectChange("MODIFIED" if pod is not None else DELETED, key, pod)
        self.cluster.apply(PODS, (change,), self._clock.now())

    def _touch(self, node: str) -> None:
        self._board = None
        self._happened.nodes[node] = None
        self._happened.topology = True


def _placed(pod: Pod, node: str) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
