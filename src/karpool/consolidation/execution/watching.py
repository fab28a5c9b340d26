"""Watches every kind that the consolidator needs, and builds its view.

Placeholders of moves are not part of the view: they reserve capacity for pods that still run elsewhere, so
those pods would count twice.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from karpool.cluster.changes import PutDropSink
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import LIVE_PODS
from karpool.cluster.market.market import Market
from karpool.consolidation.execution.in_flight_view import PlaceholderFilter, is_placeholder_of_a_move
from karpool.consolidation.execution.move_history import PodOwners, disturbances
from karpool.consolidation.execution.node_marks import marked_by
from karpool.consolidation.execution.record import MoveRecord
from karpool.consolidation.execution.stop_switch import StopSwitch
from karpool.consolidation.view import ASPECTS, ClusterView, view_of
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.model.kubernetes.api_resources import EVENTS, PODS
from karpool.model.kubernetes.pod import Pod
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
        self.owners = PodOwners()
        self.stop = StopSwitch(*stop_switch)
        self._monitor = ClaimMonitor(client.clock)
        self.smart_pods = SmartPodBackend(client, smart_pods, self._monitor, RequestPurpose.REPLACEMENT)
        self.cluster = Cluster(
            ASPECTS,
            market=market,
            failures=self._monitor.failures,
            left_out=partial(is_placeholder_of_a_move, namespace=smart_pods.namespace),
        )
        self.informers = InformerSet(client, self._watches(client.clock, smart_pods.namespace))

    def view(self, records: Iterable[MoveRecord], problems: Iterable[str], now: float) -> ClusterView:
        """The view of the cluster without active moves; `in_flight_view` adds them."""
        snapshot = self.cluster.snapshot(now)
        self._monitor.pools_seen(snapshot.pools)
        return view_of(
            snapshot, now, recent=disturbances(records), stop=self.stop.reason(), problems=problems
        )

    @property
    def changes(self) -> int:
        """A counter of changes; it stays the same while the cluster is unchanged."""
        return self.cluster.changes + self.stop.changes

    def marked(self) -> dict[str, str]:
        """The nodes that carry a mark, with the record that it names. May be stale."""
        nodes = (machine.node for machine in self.cluster.snapshot().nodes)
        return {node.name: record for node in nodes if node is not None and (record := marked_by(node))}

    def held(self) -> frozenset[str]:
        """The nodes with one of our placeholders: they look empty but are reserved."""
        return frozenset(
            placeholder.node for placeholder in self.smart_pods.placeholders() if placeholder.node
        )

    def _watches(self, clock: Clock, namespace: str) -> list[WatchedKind[Any]]:
        shared = cluster_watches(self.cluster, clock)
        mine: list[WatchedKind[Any]] = [
            WatchedKind(
                PODS,
                Pod,
                PlaceholderFilter(PutDropSink(self.owners.put, self.owners.drop), namespace),
                LIVE_PODS,
            ),
            self.stop.watch,
            *self._monitor.watches,
            # The placeholders themselves are read from the API server when needed.
            *(watch for watch in self.smart_pods.watches if watch.resource == EVENTS),
        ]
        return [*shared, *mine]
