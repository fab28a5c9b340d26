"""Everything that a consolidator watches, and the view that comes of it.

Placeholders of moves are not part of the view: they hold room for pods that are still
somewhere else, and would be counted twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from karpool.cluster.changes import ObjectChange, PutDropSink
from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.kinds import Namespace
from karpool.cluster.market.market import Market
from karpool.consolidation.execution.in_flight_view import PlaceholderFilter
from karpool.consolidation.execution.move_history import PodOwners, disturbances
from karpool.consolidation.execution.node_marks import marked_by
from karpool.consolidation.execution.record import MoveRecord
from karpool.consolidation.observed import Observed
from karpool.consolidation.stock import Stock
from karpool.consolidation.view import ClusterView
from karpool.kube.api.client import Client
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.model.kubernetes.api_resources import (
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    PVCS,
    PVS,
    STORAGECLASSES,
    ObjectKey,
)
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend


class Watching:
    def __init__(
        self,
        client: Client,
        smart_pods: SmartPodSettings,
        *,
        market: Market | None,
        stop_switch: tuple[str, str],
    ) -> None:
        self.observed = Observed(market, stop_switch=stop_switch)
        self.owners = PodOwners()
        self.changes = 0  # of anything but events, counted: a cluster that stands still is known by it
        self.marked: dict[str, Node] = {}  # nodes that a move has marked, as far as is known
        self._monitor = ClaimMonitor(client.clock)
        self.smart_pods = SmartPodBackend(client, smart_pods, self._monitor, RequestPurpose.REPLACEMENT)
        self._stock = Stock(client.clock, self._monitor.failures)
        self._state = ClusterRoom()
        self.informers = InformerSet(client, self._watches(smart_pods.namespace))

    def view(self, records: Iterable[MoveRecord], problems: Iterable[str], now: float) -> ClusterView:
        """As the cluster is; how moves under way change it is in `in_flight_view`."""
        view = self.observed.view(
            self._state.snapshot(),
            recent=disturbances(records),
            problems=[*map(str, self._state.problems), *problems],
        )
        self._monitor.pools_seen(view.pools)
        return self._stock.seen_in(view, now)

    def held(self) -> frozenset[str]:
        """Nodes with a placeholder of ours: they look empty, and are not."""
        return frozenset(
            placeholder.node for placeholder in self.smart_pods.placeholders() if placeholder.node
        )

    def _watches(self, namespace: str) -> list[WatchedKind[Any]]:
        state = self._state
        wanted: list[WatchedKind[Any]] = [
            WatchedKind(NAMESPACES, Namespace, state.sink("Namespace")),
            WatchedKind(PVCS, PersistentVolumeClaim, state.sink("PersistentVolumeClaim"), optional=True),
            WatchedKind(PVS, PersistentVolume, state.sink("PersistentVolume"), optional=True),
            WatchedKind(STORAGECLASSES, StorageClass, state.sink("StorageClass"), optional=True),
            WatchedKind(NODES, Node, state.sink("Node")),
            WatchedKind(NODES, Node, PutDropSink(self._put_node, self._drop_node)),
            WatchedKind(PODS, Pod, state.sink("Pod")),
            WatchedKind(PODS, Pod, PutDropSink(self.owners.put, self.owners.drop)),
            *self.observed.watches,
            *self._stock.watches,
            *self._monitor.watches,
            # Placeholders themselves are read when they matter.
            *(watch for watch in self.smart_pods.watches if watch.resource == EVENTS),
        ]
        counter = _Counter(self)
        wanted += [
            replace(watched_kind, sink=counter)
            for watched_kind in {
                (one.resource, one.into): one for one in wanted if one.resource != EVENTS
            }.values()
        ]
        return [
            replace(kind, sink=PlaceholderFilter(kind.sink, namespace)) if kind.resource == PODS else kind
            for kind in wanted
        ]

    def _put_node(self, key: ObjectKey, node: Node) -> None:
        if marked_by(node):
            self.marked[node.name] = node
        else:
            self.marked.pop(node.name, None)

    def _drop_node(self, key: ObjectKey) -> None:
        self.marked.pop(key.name, None)


class _Counter:
    def __init__(self, watching: Watching) -> None:
        self._watching = watching

    def apply(self, changes: Sequence[ObjectChange[Any]], /) -> None:
        self._watching.changes += len(changes)
