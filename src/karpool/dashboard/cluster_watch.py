"""One cluster, watched: every kind that some view shows, kept current by informers.

Kinds that a cluster does not have are kinds without objects: a Karmada control plane, a
Karpenter cluster and one with GPU scale-up are all watched alike. Nothing is written.
Who is told of changes is told by area, not by object.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from karpool.consolidation.observed import Observed
from karpool.consolidation.stock import Stock
from karpool.consolidation.view import ClusterView
from karpool.dashboard.bell import Area, Bell
from karpool.dashboard.happenings import RecentEvents
from karpool.estimator.owners import BETWEEN, Owned, Owners
from karpool.estimator.pods import NOT_KNOWN, BoundPods
from karpool.gpu.record import Record
from karpool.gpu.scale_up_object import SCALEUPS, ScaleUp, from_scale_up
from karpool.kube.client import Client
from karpool.kube.errors import Denied
from karpool.kube.event_object import Event
from karpool.kube.following import Following
from karpool.kube.informer import Change
from karpool.kube.resource import (
    ALL,
    CLUSTERRESOURCEBINDINGS,
    CLUSTERS,
    EVENTS,
    NAMESPACES,
    NODECLAIMS,
    NODES,
    PODS,
    PVCS,
    PVS,
    RESOURCEBINDINGS,
    STORAGECLASSES,
    Key,
    Resource,
    Selection,
)
from karpool.kube.watched import ObjectSink, Watched
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import binding_key
from karpool.model.karpenter import NodeClaim
from karpool.model.node import Node
from karpool.model.pod import Pod
from karpool.model.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from karpool.provisioning.market import Market
from karpool.provisioning.placeholders import REQUEST
from karpool.scheduler.ledger import Ledger
from karpool.scheduler.promise import Lifetime, Promise
from karpool.scheduler.view import View as SchedulerView
from karpool.state.cluster import ClusterState, Namespace
from karpool.wire.request import Arrived

Object = dict[str, Any]
FINISHED_MAX = 100
_KARMADA = (CLUSTERS, RESOURCEBINDINGS, CLUSTERRESOURCEBINDINGS)


class ClusterWatch:
    """`name` is the cluster's in the whole fleet: the one Karmada knows it by, for a member."""

    def __init__(
        self,
        name: str,
        client: Client,
        bell: Bell,
        *,
        lifetime: Lifetime | None = None,
        market: Market | None = None,
    ) -> None:
        self.name = name
        self.clock = client.clock
        self.state = ClusterState()
        self.scheduling = SchedulerView(client.clock, Ledger(lifetime))
        self.events = RecentEvents()
        self.records: dict[Key, Record] = {}
        self.unreadable: dict[Key, str] = {}  # scale-ups
        # Records go as soon as they are over, and people look later: the last seen, and when they went.
        self.finished: OrderedDict[Key, tuple[Record, float]] = OrderedDict()
        self.smart_pods: dict[Key, Pod] = {}
        self.claims: dict[str, NodeClaim] = {}
        self._observed = Observed(market)
        self._stock = Stock(client.clock)
        self._bell = bell
        self._owners = Owners()
        self._bound = BoundPods(self.state.shape_of, self._owners.get)
        self._following = Following(client, self._all_watches())
        self.seen = 0  # grows with whatever is heard
        self._changes = 0
        self._view: tuple[int, ClusterView] | None = None

    # Running

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._following.run()

    def not_ready(self) -> str | None:
        """What has not been read yet; kinds that the cluster does not have are not waited for."""
        return self._following.not_ready()

    @property
    def staleness(self) -> float:
        """Seconds since the API server was last heard of."""
        return min(informer.staleness() for informer in self._following.informers)

    @property
    def is_control_plane(self) -> bool:
        return any(
            informer.resource is CLUSTERS and informer.synced.is_set()
            for informer in self._following.informers
        )

    # Reading

    def view(self) -> ClusterView:
        """As consolidation sees it; the same object until something changes."""
        if self._view is None or self._view[0] != self._changes:
            seen = self._observed.view(self.state.snapshot(), problems=self.problems())
            self._view = self._changes, self._stock.seen_in(seen, self.clock.now())
        return self._view[1]

    @property
    def version(self) -> int:
        """Grows with everything that `view` is made from."""
        return self._changes

    def failure_of(self, pool: str) -> str:
        """Why a pool does not deliver at present, or nothing."""
        found = self._stock.failures.of_pool(pool, self.clock.now())
        return "" if found is None else str(found)

    def arrived(self, promise: Promise) -> Arrived:
        """What of a promise is on nodes here, as the cluster's own estimator would say; empty as long as
        that is not known."""
        if self.not_ready() is not None:
            return NOT_KNOWN
        return self._bound.arrived(promise.assumed(promise.promised))

    def problems(self) -> list[str]:
        """Kinds that may not be read, and objects that cannot be understood."""
        denied = [
            f"{informer.resource}: {informer.last_error}"
            for informer in self._following.informers
            if isinstance(informer.last_error, Denied)
        ]
        return [*denied, *map(str, self.state.problems)]

    # Inside

    def _changed(self, resource: Resource, areas: Sequence[Area]) -> None:
        self.seen += 1
        if Area.FLEET in areas and resource not in _KARMADA:
            self._changes += 1
        self._bell.ring(areas)

    def _all_watches(self) -> Iterator[Watched[Any]]:
        """Every kind, and that something of it changed: told last, when all others know."""
        wanted = list(self._watches())
        yield from wanted
        for resource, into, selection in {(each.resource, each.into, each.selection): 0 for each in wanted}:
            told = _Told(partial(self._changed, resource, _areas_of(resource, into, selection)))
            yield Watched(resource, into, told, selection, optional=True)

    def _watches(self) -> Iterable[Watched[Any]]:
        sink = self.state.sink
        yield Watched(NAMESPACES, Namespace, sink("Namespace"))
        yield Watched(NODES, Node, sink("Node"))
        yield Watched(PODS, Pod, sink("Pod"))
        yield Watched(PVCS, PersistentVolumeClaim, sink("PersistentVolumeClaim"), optional=True)
        yield Watched(PVS, PersistentVolume, sink("PersistentVolume"), optional=True)
        yield Watched(STORAGECLASSES, StorageClass, sink("StorageClass"), optional=True)
        yield from self._observed.watches
        yield from self._stock.watches
        yield Watched(PODS, Pod, ObjectSink(self._put_pod, self._drop_pod))
        yield Watched(PODS, Pod, self._bound)  # after the state, which knows what each pod asks for
        for resource in BETWEEN:
            yield Watched(resource, Owned, self._owners, optional=True)
        yield Watched(NODECLAIMS, NodeClaim, ObjectSink(self._put_claim, self._drop_claim), optional=True)
        yield Watched(SCALEUPS, ScaleUp, ObjectSink(self._put_record, self._drop_record), optional=True)
        yield Watched(EVENTS, Event, self.events, optional=True)
        yield Watched(CLUSTERS, dict, _Each(self._on_member), optional=True)
        for resource in (RESOURCEBINDINGS, CLUSTERRESOURCEBINDINGS):
            yield Watched(resource, dict, _Each(self._on_binding), optional=True)

    def _put_pod(self, key: Key, pod: Pod) -> None:
        if REQUEST in pod.labels:
            self.smart_pods[key] = pod

    def _drop_pod(self, key: Key) -> None:
        self.smart_pods.pop(key, None)

    def _put_claim(self, key: Key, claim: NodeClaim) -> None:
        self.claims[key.name] = claim

    def _drop_claim(self, key: Key) -> None:
        self.claims.pop(key.name, None)

    def _put_record(self, key: Key, found: ScaleUp) -> None:
        try:
            self.records[key] = from_scale_up(found)
            self.unreadable.pop(key, None)
            self.finished.pop(key, None)
        except Invalid as error:
            self.unreadable[key] = f"ScaleUp {key}: {error}"

    def _drop_record(self, key: Key) -> None:
        self.unreadable.pop(key, None)
        record = self.records.pop(key, None)
        if record is not None:
            self.finished[key] = record, self.clock.now()
            while len(self.finished) > FINISHED_MAX:
                self.finished.popitem(last=False)

    def _on_member(self, change: Change[Object]) -> None:
        _, member = self.scheduling.clusters.apply(change)
        ledger, now = self.scheduling.ledger, self.clock.monotonic()
        if ledger is None:
            return
        if member is None:
            ledger.cluster_gone(change.key.name, now)
        else:
            ledger.see_cluster(member.name, member.summary, now)

    def _on_binding(self, change: Change[Object]) -> None:
        key = binding_key(*change.key)
        _, known = self.scheduling.bindings.apply(change, key)
        if known is None:
            self.scheduling.forget(key)
        elif known.binding is not None:
            self.scheduling.see(known.binding)


class _Told:
    """Knows that something changed, not what."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def apply(self, changes: Sequence[Change[Any]], /) -> None:
        self._tell()


class _Each:
    def __init__(self, take: Callable[[Change[Object]], None]) -> None:
        self._take = take

    def apply(self, changes: Sequence[Change[Any]], /) -> None:
        for change in changes:
            self._take(change)


def _areas_of(resource: Resource, into: type[Any], selection: Selection) -> Sequence[Area]:
    """Whose views are out of date. Plans are made anew by themselves; see `collector`."""
    if resource == EVENTS and selection == ALL:  # others are about stock
        return (Area.EVENTS,)
    if into is Owned:
        return ()
    if resource in _KARMADA:
        return (Area.FLEET, Area.PLACEMENTS, Area.PROMISES)
    if resource == SCALEUPS:
        return (Area.SCALE_UPS,)
    return (Area.FLEET, Area.SCALE_UPS)
