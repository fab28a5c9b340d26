"""Watches one cluster: informers keep every kind that a view shows.

A kind that the cluster does not serve counts as a kind without objects. So a Karmada control plane, a
Karpenter cluster and a cluster with GPU scale-up are watched in the same way. Nothing is written. Listeners
are notified by area, not by object.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import (
    ChangeSink,
    ObjectChange,
    change_of_raw,
    flattened,
    identity,
    is_selected,
)
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import SCALE_UPS, OwnedObject
from karpool.cluster.market.market import Market
from karpool.cluster.market.stock_outs import OUT_OF_STOCK
from karpool.cluster.pods.owner_store import chain, controller_of
from karpool.consolidation.execution.stop_switch import StopSwitch
from karpool.consolidation.view import ASPECTS, ClusterView, view_of
from karpool.dashboard.change_notifier import ChangeNotifier, ViewArea
from karpool.dashboard.evictions import EvictionCounter
from karpool.dashboard.pages.gpus import ClusterDevices, cluster_devices
from karpool.dashboard.pages.move_ledger import MoveRecords
from karpool.dashboard.pages.node_table import NodeIndex, node_index
from karpool.dashboard.pages.recent_events import EventBuffer
from karpool.dashboard.pages.search import SearchedCluster
from karpool.dashboard.pages.waiting_pods import ClusterWaiting
from karpool.dashboard.scale_up_history import ScaleUpHistory
from karpool.estimator.capacity import CapacityAnalyzer
from karpool.estimator.pod_explanation import PodExplanation, waiting_pod_explained
from karpool.estimator.providers.cluster_autoscaler import ClusterAutoscalerProvider
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.kube.api.client import Client
from karpool.kube.errors import Denied
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import EachSink, WatchedKind
from karpool.model.karmada.binding import binding_key
from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.model.kubernetes.api_resources import (
    ALL,
    CLUSTERRESOURCEBINDINGS,
    CLUSTERS,
    CONFIGMAPS,
    EVENTS,
    RESOURCEBINDINGS,
    ApiResource,
    ObjectKey,
)
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.pod import Pod
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.placeholders.placeholder import REQUEST
from karpool.rooms.arrived import NOT_KNOWN, arrived
from karpool.scheduler.cycle.binding_store import SchedulerStores as SchedulerView
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.promise import Promise, PromiseLifetime
from karpool.wire.requests import ArrivedReplicas

Object = dict[str, Any]
_KARMADA = (CLUSTERS, RESOURCEBINDINGS, CLUSTERRESOURCEBINDINGS)


# In addition to what plans need: owners of pods, pending pods, and devices of drivers.
_ASPECTS = ASPECTS | Aspect.OWNERS | Aspect.WAITING | Aspect.NODE_GROUPS | Aspect.DRA


def is_smart_pod(pod: Pod) -> bool:
    return REQUEST in pod.labels


def is_kept(pod: Pod) -> bool:
    """Whether the whole pod is kept: placeholders, which have a timeline, and pods without a node."""
    return is_smart_pod(pod) or not (pod.spec.node_name or pod.is_terminal)


class DashboardCluster:
    """One watched cluster. `name` is its name in the fleet: for a member, its name in Karmada."""

    def __init__(
        self,
        name: str,
        client: Client,
        bell: ChangeNotifier,
        *,
        lifetime: PromiseLifetime | None = None,
        market: Market | None = None,
    ) -> None:
        self.name = name
        self.clock = client.clock
        self.cluster = Cluster(_ASPECTS, market=market, keeps=is_kept)
        self._karpenter = KarpenterProvider(self.clock, self.cluster.failures)
        autoscaler = ClusterAutoscalerProvider(self.clock, self.cluster.group_failures)
        self._analyzer = CapacityAnalyzer([self._karpenter, autoscaler])
        self.scheduling = SchedulerView(client.clock, PromiseLedger(lifetime))
        self.events = EventBuffer()
        self.scale_ups = ScaleUpHistory(client.clock)
        self.claims = ClaimMonitor(client.clock)
        self.moves = MoveRecords()
        self.evictions = EvictionCounter()
        self._stop = StopSwitch()
        self._bell = bell
        self.informers = InformerSet(client, self._all_watches())
        self.seen = 0  # grows with every event
        self._changes = 0
        self._view: tuple[int, ClusterView] | None = None
        self.looked_at = float("-inf")  # monotonic: when the view was made
        self._index: NodeIndex | None = None
        self._gaps: tuple[ClusterView, Sequence[str]] | None = None
        self._devices: tuple[ClusterView, ClusterDevices] | None = None
        self.is_file = False

    # Running

    def load(self, objects: Sequence[Object]) -> None:
        """Load objects of a file instead of running informers."""
        self.is_file = True
        identified = [(raw, identity(raw)[1]) for raw in flattened(objects)]
        for watched in self._all_watches():
            resource = watched.resource
            watched.sink.apply(
                [
                    change_of_raw(raw, key, watched.into)
                    for raw, key in identified
                    if (raw.get("kind"), raw.get("apiVersion")) == (resource.kind, resource.api_version)
                    and is_selected(raw, key, watched.selection)
                ]
            )

    def not_ready(self) -> str | None:
        """Return what was not listed yet; kinds that the cluster does not serve are not waited for."""
        return None if self.is_file else self.informers.not_ready()

    @property
    def staleness(self) -> float:
        """Seconds since the last message of the API server, for the stalest kind."""
        return 0.0 if self.is_file else self.informers.staleness()

    @property
    def is_control_plane(self) -> bool:
        if self.is_file:
            return bool(self.scheduling.clusters.all())
        return any(
            informer.resource is CLUSTERS and informer.synced.is_set()
            for informer in self.informers.informers
        )

    # Reading

    @property
    def smart_pods(self) -> Iterable[Pod]:
        return filter(is_smart_pod, self.cluster.kept_pods.values())

    @property
    def waiting_pods(self) -> Iterable[Pod]:
        """Return the pods without a node."""
        return (pod for pod in self.cluster.kept_pods.values() if not pod.spec.node_name)

    def waiting(self) -> ClusterWaiting:
        return ClusterWaiting(self.name, self.waiting_pods, self.cluster.room.shape_of, self.workload_of)

    def workload_of(self, pod: Pod) -> str:
        """Return kind and name of the topmost known owner."""
        owners = list(chain(controller_of(pod.metadata), self.cluster.owners.get))
        return f"{owners[-1].kind} {owners[-1].name}" if owners else ""

    def index(self) -> NodeIndex:
        """Return the index of the latest view; it is the same object while the view is the same."""
        view = self.latest_view()
        if self._index is None or self._index.view is not view:
            self._index = node_index(self.name, view)
        return self._index

    def devices(self) -> ClusterDevices:
        view = self.latest_view()
        if self._devices is None or self._devices[0] is not view:
            self._devices = view, cluster_devices(self.name, self.cluster.snapshot(self.clock.now()))
        return self._devices[1]

    def explained(self, key: ObjectKey) -> PodExplanation | None:
        """Explain why a pod is pending; None if it does not exist or has a node."""
        pod, shape = self.cluster.kept_pods.get(key), self.cluster.room.shape_of(*key)
        if pod is None or shape is None or pod.spec.node_name:
            return None
        now = self.clock.now()
        snapshot = self.cluster.snapshot(now)
        others = {other: waiting for other, waiting in snapshot.waiting.items() if other != key}
        return waiting_pod_explained(
            pod,
            ReplicaRequirements(shape, key.namespace, pod.spec.priority_class_name),
            replace(snapshot, waiting_pods=others),  # without the pod itself
            self._analyzer,
            self._karpenter,
            now=now,
            volumes=self.cluster.room.volumes_of(pod),
            events=[event for event in self.events if event.involved_object.name == key.name],
        )

    def node_of(self, pod: str) -> str:
        """Return the node of a pod (`namespace/name`); empty if it has none."""
        view = self.view()
        try:
            return view.machines[int(view.pods.rows[view.pods.keys.index(pod)])].name
        except ValueError:
            return ""

    def view(self) -> ClusterView:
        """Return the view of consolidation; it is the same object until something changes."""
        if self._view is None or self._view[0] != self._changes:
            now = self.clock.now()
            view = view_of(self.cluster.snapshot(now), now, stop=self._stop.reason(), problems=self._denied())
            self._view, self.looked_at = (self._changes, view), self.clock.monotonic()
        return self._view[1]

    def latest_view(self) -> ClusterView:
        """Return the last view, even if it `is_behind`: many clusters are refreshed in turn."""
        return self.view() if self._view is None else self._view[1]

    @property
    def is_behind(self) -> bool:
        return self._view is None or self._view[0] != self._changes

    @property
    def version(self) -> int:
        """Return a number that grows with every change of the data of `view`."""
        return self._changes

    def failing_pools(self) -> dict[str, str]:
        """Return pools that cannot launch nodes at present, with the reason."""
        now, failures = self.clock.now(), self.cluster.failures
        failing = {pool: failures.of_pool(pool, now) for pool in self.latest_view().pool_objects}
        return {pool: str(failure) for pool, failure in failing.items() if failure is not None}

    def price_gaps(self) -> Sequence[str]:
        """Return why prices are not known; computed once per view."""
        view, market = self.latest_view(), self.cluster.market
        if self._gaps is None or self._gaps[0] is not view:
            self._gaps = view, market.gaps()
        return self._gaps[1]

    def searched(self) -> SearchedCluster:
        waiting = (str(key) for key, pod in self.cluster.kept_pods.items() if not pod.spec.node_name)
        workloads = (f"{top.kind} {namespace}/{top.name}" for namespace, top in self.cluster.workloads())
        return SearchedCluster(self.index(), waiting, workloads)

    def arrived(self, promise: Promise) -> ArrivedReplicas:
        """Return the replicas of a promise that are on nodes, as the estimator would; empty until synced."""
        if self.not_ready() is not None:
            return NOT_KNOWN
        return arrived(self.cluster.replicas_of, promise.assumed(promise.promised))

    def _denied(self) -> list[str]:
        return [
            f"{informer.resource}: {informer.last_error}"
            for informer in self.informers.informers
            if isinstance(informer.last_error, Denied)
        ]

    # Inside

    def _changed(self, resource: ApiResource, areas: Sequence[ViewArea]) -> None:
        self.seen += 1
        if ViewArea.FLEET in areas and resource not in _KARMADA:
            self._changes += 1
        self._bell.ring(areas)

    def _all_watches(self) -> Iterator[WatchedKind[Any]]:
        """Return all kinds; each also reports that it changed, after all other sinks."""
        # The dashboard shows what its account may read, and names what is forbidden.
        kinds = [replace(kind, refines=kind.optional) for kind in self._watches()]
        yield from kinds
        for resource, into, selection in {(kind.resource, kind.into, kind.selection): 0 for kind in kinds}:
            told = _Told(partial(self._changed, resource, _areas_of(resource, into)))
            yield WatchedKind(resource, into, told, selection, optional=True, refines=True)

    def _watches(self) -> Iterable[WatchedKind[Any]]:
        yield from map(self._without_own_events, cluster_watches(self.cluster, self.clock))
        yield self._stop.watch
        yield self.moves.watch
        yield self.evictions.watch
        yield from map(self._without_own_events, self.claims.watches)
        yield self.scale_ups.watch
        yield WatchedKind(EVENTS, KubeEvent, self.events, optional=True)
        yield WatchedKind(CLUSTERS, dict, EachSink(self._on_member), optional=True)
        for resource in (RESOURCEBINDINGS, CLUSTERRESOURCEBINDINGS):
            yield WatchedKind(resource, dict, EachSink(self._on_binding), optional=True)

    def _without_own_events(self, watched: WatchedKind[Any]) -> WatchedKind[Any]:
        """Widen the watch of events to all of them: the page shows all, so stock events need no own watch."""
        if watched.resource != EVENTS:
            return watched
        heard = partial(self._changed, EVENTS, (ViewArea.FLEET, ViewArea.SCALE_UPS))
        return replace(watched, sink=_StockEvents(watched.sink, heard), selection=ALL)

    def _on_member(self, change: ObjectChange[Object]) -> None:
        _, member = self.scheduling.clusters.apply(change)
        ledger, now = self.scheduling.ledger, self.clock.monotonic()
        if ledger is None:
            return
        if member is None:
            ledger.cluster_gone(change.key.name, now)
        else:
            ledger.observe_cluster(member.name, member.summary, now)

    def _on_binding(self, change: ObjectChange[Object]) -> None:
        key = binding_key(*change.key)
        _, version = self.scheduling.bindings.apply(change, key)
        if version is None:
            self.scheduling.forget(key)
        elif version.binding is not None:
            self.scheduling.observe(version.binding)


class _Told:
    """A sink that only reports that something changed."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def apply(self, changes: Sequence[ObjectChange[Any]], /) -> None:
        self._tell()


class _StockEvents:
    """Passes on only events about stock."""

    def __init__(self, sink: ChangeSink[KubeEvent], tell: Callable[[], None]) -> None:
        self._sink, self._tell = sink, tell

    def apply(self, changes: Sequence[ObjectChange[KubeEvent]], /) -> None:
        about_stock = [
            change for change in changes if change.object is not None and change.object.reason == OUT_OF_STOCK
        ]
        if about_stock:
            self._sink.apply(about_stock)
            self._tell()


def _areas_of(resource: ApiResource, into: type[Any]) -> Sequence[ViewArea]:
    """Return the areas whose views are outdated. Plans are refreshed by time; see `collector`."""
    if resource == EVENTS:
        return (ViewArea.EVENTS,)
    if into is OwnedObject:
        return ()
    if resource in _KARMADA:
        return (ViewArea.FLEET, ViewArea.PLACEMENTS, ViewArea.PROMISES)
    if resource == SCALE_UPS.resource:
        return (ViewArea.SCALE_UPS,)
    if resource == CONFIGMAPS:
        return (ViewArea.FLEET, ViewArea.MOVES)
    return (ViewArea.FLEET, ViewArea.SCALE_UPS)
