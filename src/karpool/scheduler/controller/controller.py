"""The scheduler: watches bindings and clusters, places its bindings, and retries those without capacity.

It decides nothing before every binding was listed and every promise restored. A binding without capacity
waits until some appears: a member's summary, a released promise, a new cluster. Such events are collected for
a moment, so that many of them cause one pass over the waiting bindings. Stopping finishes the writes in
progress.

`Scheduler` assembles the parts, for a process, a test or an embedded fleet; all dependencies are passed in.
One instance is one term of leadership; the next leader is a new instance.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.decision_id import decision_scope
from karpool.kube.errors import LeadershipLost
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import EachSink, WatchedKind
from karpool.kube.work_queue import QueueShutDown
from karpool.manager.controller import Environment
from karpool.manager.feature_gates import OVERCOMMIT_PROTECTION, PRIORITY, Gates, scheduler_gates
from karpool.manager.metrics import QueueMetrics
from karpool.manager.readiness import ManagerStatus
from karpool.manager.stop import Stop
from karpool.model.karmada.binding import Binding, BindingKey, binding_key
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.kubernetes.api_resources import CLUSTERRESOURCEBINDINGS, CLUSTERS, RESOURCEBINDINGS
from karpool.scheduler.controller import options, wake_ups
from karpool.scheduler.controller.binding_writer import BindingWriter
from karpool.scheduler.controller.metrics import Event, SchedulerMetrics
from karpool.scheduler.controller.queue import BACKOFF_SECONDS, UNSCHEDULABLE_SECONDS, BindingQueue
from karpool.scheduler.controller.reconciler import BindingReconciler, QueueAction, ReconcileResult, Show
from karpool.scheduler.controller.reporting import BindingReporter
from karpool.scheduler.controller.room_follower import RoomFollower
from karpool.scheduler.cycle.binding_store import BindingVersion, Object, SchedulerStores
from karpool.scheduler.cycle.cycle import SchedulingCycle
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.estimates.availability import AvailabilityReader
from karpool.scheduler.estimates.estimate_cache import EstimatorApi, RoomNews
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.metrics import PromiseMetrics
from karpool.scheduler.promises.promise import PromiseLifetime

if TYPE_CHECKING:
    from karpool.scheduler.estimates.estimator_client import EstimatorClient
    from karpool.scheduler.estimates.local_rooms import LocalRooms
    from karpool.scheduler.estimates.room_keeper import RoomKeeper

log = structlog.get_logger(__name__)

WORKERS = 16
# Capacity events within this time are handled together; with many waiting bindings the pass takes longer.
GATHER_SECONDS = 0.02
GATHER_SECONDS_PER_WAITING = 0.002
EXPIRY_SECONDS_MAX = 30.0
VERIFY_SECONDS = 2.0
LOOKS_PER_VERIFY = 4  # a new waiting binding is followed within half a second, and retried within two
QUEUE = "scheduler-queue"  # Karmada's name of it in metrics

Follow = Callable[[MemberCluster | None, MemberCluster | None], None]


class SchedulerController:
    """`follow` is called with every change of a cluster: before and after."""

    def __init__(
        self,
        client: Client,
        name: str,
        view: SchedulerStores,
        queue: BindingQueue[BindingKey],
        metrics: SchedulerMetrics,
        *,
        status: ManagerStatus,
        workers: int = WORKERS,
        follow: Follow = lambda old, new: None,
    ) -> None:
        self._name = name
        self._status = status
        self._clock: Clock = client.clock
        self._view = view
        self._known = view.bindings
        self._clusters = view.clusters
        self._queue = queue
        self._metrics = metrics
        self._workers = workers
        self._follow = follow
        view.room_in = self.room_in
        self._room: set[str] = set()
        self._room_appeared = asyncio.Event()
        self._started = False
        self.informers = InformerSet(
            client,
            [
                WatchedKind(RESOURCEBINDINGS, dict, EachSink(self._on_binding)),
                WatchedKind(CLUSTERRESOURCEBINDINGS, dict, EachSink(self._on_binding)),
                WatchedKind(CLUSTERS, dict, EachSink(self._on_cluster)),
            ],
        )

    async def run(self, placer: BindingReconciler, stop: Stop, *, grace_seconds: float = 10.0) -> None:
        """Place bindings until `stop` is set; then finish the writes in progress."""
        self.start()
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._wake()), group.create_task(self._expire())]
            try:
                await stop.finish(self._work_together(placer, stop), self._close, grace_seconds=grace_seconds)
            finally:
                for task in beside:
                    task.cancel()

    def _close(self) -> None:
        log.info("stopping", waiting=self._queue.sizes())
        self._queue.shut_down()

    async def _work_together(self, placer: BindingReconciler, stop: Stop) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work(placer, stop))

    def start(self) -> None:
        """Start after the initial lists: restore all promises, then queue every binding of ours."""
        self._view.rebuild()
        self._started = True
        for binding_version in self._known.all():
            if binding_version.is_ours(self._name):
                self._add(binding_version, "BindingAdd")

    def room_in(self, clusters: Iterable[str]) -> None:
        """Retry bindings that may fit: these clusters may have more capacity."""
        self._room.update(clusters)
        if self._room:
            self._room_appeared.set()

    # Events

    def _on_binding(self, change: ObjectChange[Object]) -> None:
        key = binding_key(*change.key)
        before, now = self._known.apply(change, key)
        if not self._started or (before is now and now is not None):
            return
        if now is None:
            self._queue.forget(key)
            self._view.forget(key)
            return
        if now.binding is not None and not _says_the_same(before, now.binding):
            self._view.observe(now.binding)
        if not now.is_ours(self._name):
            return
        if before is None or not before.is_ours(self._name):
            self._add(now, "BindingAdd")
        elif before.head.generation != now.head.generation or before.uid != now.uid:
            self._add(now, "BindingUpdate")

    def _on_cluster(self, change: ObjectChange[Object]) -> None:
        old, new = self._clusters.apply(change)
        self._follow(old, new)
        if not self._started:
            return
        if (ledger := self._view.ledger) is not None:
            now = self._clock.monotonic()
            if new is None:
                ledger.cluster_gone(change.key.name, now)
            else:
                self.room_in(ledger.observe_cluster(new.name, new.summary, now))
        if wake_ups.identity_changed(old, new):
            self._requeue_concerned(old, new)
        if new is not None and wake_ups.room_grew(old, new):
            self.room_in((new.name,))

    def _requeue_concerned(self, old: MemberCluster | None, new: MemberCluster | None) -> None:
        for binding_version in self._known.all():
            if binding_version.binding is None or not binding_version.is_ours(self._name):
                continue
            if wake_ups.concerns(binding_version.binding, old, new):
                self._add(binding_version, "ClusterChanged")

    def _add(self, binding_version: BindingVersion, event: Event) -> None:
        self._metrics.queued(event)
        self._queue.add(binding_version.head.key, priority=binding_version.head.priority)

    # Work

    async def _work(self, placer: BindingReconciler, stop: Stop) -> None:
        while True:
            try:
                key = await self._queue.get()
            except QueueShutDown:
                return
            try:
                if not await self._status.fresh(stop):
                    return
                with decision_scope():
                    await self._reconcile(placer, key)
            finally:
                self._queue.done(key)

    async def _reconcile(self, placer: BindingReconciler, key: BindingKey) -> None:
        cycle = self._queue.cycle
        try:
            result = await placer.reconcile(key)
        except LeadershipLost:
            raise
        except Exception as error:  # a bug, or an unexpected object, must not stop the others
            log.exception("scheduling raised", binding=str(key), reason=str(error))
            result = ReconcileResult(QueueAction.LATER)
        binding_version = self._known.get(key)
        priority = binding_version.head.priority if binding_version is not None else 0
        match result.next:
            case QueueAction.DONE:
                self._queue.succeeded(key)
            case QueueAction.AGAIN:
                self._queue.add(key, priority=priority)
            case QueueAction.LATER:
                self._metrics.queued("ScheduleAttemptFailure")
                self._queue.failed(key, priority=priority)
            case QueueAction.WAIT:
                self._queue.unschedulable(key, cycle, priority=priority, within_seconds=result.after_seconds)

    async def _wake(self) -> None:
        while True:
            await self._room_appeared.wait()
            waiting = self._queue.sizes()["unschedulable"]
            await self._clock.sleep(GATHER_SECONDS + GATHER_SECONDS_PER_WAITING * waiting)
            names, self._room = self._room, set()
            self._room_appeared.clear()
            clusters = [cluster for name in names if (cluster := self._clusters.get(name)) is not None]
            woken = self._queue.wake(partial(self._may_fit, clusters=clusters))
            self._metrics.woke(woken)

    def _may_fit(self, key: BindingKey, clusters: Sequence[MemberCluster]) -> bool:
        binding_version = self._known.get(key)
        if binding_version is None or binding_version.binding is None:
            return True
        return any(wake_ups.may_go_to(binding_version.binding, cluster) for cluster in clusters)

    async def _expire(self) -> None:
        while (ledger := self._view.ledger) is not None:
            due_seconds = ledger.next_expiry(self._clock.monotonic())
            wait = (
                EXPIRY_SECONDS_MAX if due_seconds is None else min(max(due_seconds, 1.0), EXPIRY_SECONDS_MAX)
            )
            await self._clock.sleep(wait)
            self.room_in(ledger.expire(self._clock.monotonic()))


def _says_the_same(before: BindingVersion | None, now: Binding) -> bool:
    """Whether nothing changed that promises depend on; most status writes are of this kind."""
    held = before.binding if before is not None else None
    return held is not None and held.generation == now.generation and held.aggregated == now.aggregated


@dataclass(frozen=True)
class SchedulerSettings:
    name: str = options.SCHEDULER_NAME
    gates: Gates = field(default_factory=scheduler_gates)
    settings: SchedulingSettings = field(default_factory=SchedulingSettings)
    lifetime: PromiseLifetime = field(default_factory=PromiseLifetime)
    workers: int = WORKERS
    unschedulable_seconds: float = UNSCHEDULABLE_SECONDS
    hold_down_seconds: float = 60.0
    max_room_age_seconds: float = 5.0  # of local rooms; 0: always ask estimators
    grace_seconds: float = 10.0
    # Back-off of failures without priorities, doubled each time.
    base_delay_seconds: float = 0.005
    max_delay_seconds: float = 1000.0


class Scheduler:
    """`asker` None: there are no estimators. `estimators` are closed with the scheduler."""

    def __init__(
        self,
        environment: Environment,
        chosen: SchedulerSettings | None = None,
        *,
        asker: EstimatorApi | None = None,
        estimators: "EstimatorClient | None" = None,
        show: Show | None = None,
    ) -> None:
        self._options = use = chosen or SchedulerSettings()
        self._estimators = estimators
        self._keeper: RoomKeeper | None = None
        self._is_leading = False
        client, registry = environment.client, environment.registry
        promises = PromiseMetrics(registry)
        protected = use.gates[OVERCOMMIT_PROTECTION]
        self.view = SchedulerStores(
            client.clock, PromiseLedger(use.lifetime, promises.released) if protected else None
        )
        if self.view.ledger is not None:
            promises.follow(self.view.ledger, client.clock.monotonic)
        self.rooms = self._keep_rooms(client.clock, registry)
        self._asks = AvailabilityReader(
            use.settings,
            client.clock,
            ledger=self.view.ledger,
            asker=asker or estimators,
            rooms=self.rooms,
            hold_down_seconds=use.hold_down_seconds,
            on_freed=self._room_in,
        )
        news: object = asker or estimators
        self._rooms: RoomFollower | None = None
        if isinstance(news, RoomNews):
            self._rooms = RoomFollower(
                news,
                self._asks,
                client.clock,
                clusters=self.view.clusters.all,
                waiting=self._waiting_bindings,
                room_in=self._room_in,
            )
        self.queue: BindingQueue[BindingKey] = BindingQueue(
            client.clock,
            prioritized=use.gates[PRIORITY],
            backoff_seconds=self._delay,
            unschedulable_seconds=use.unschedulable_seconds,
            tell=QueueMetrics(registry, QUEUE, client.clock.monotonic),
        )
        self.metrics = SchedulerMetrics(registry, self.queue.sizes)
        self._controller = SchedulerController(
            client,
            use.name,
            self.view,
            self.queue,
            self.metrics,
            status=environment.status,
            workers=use.workers,
            follow=self._follow_clusters,
        )
        self.informers = (self._controller.informers,)
        self._placer = BindingReconciler(
            use.name,
            self.view,
            SchedulingCycle(
                self.view, self._asks, use.settings, observe=self.metrics.step, timing=self.metrics
            ),
            BindingWriter(
                client,
                check=environment.check,
                count=self.metrics.wrote,
                get_version=self.view.bindings.get_version,
            ),
            reporter=BindingReporter(environment.events),
            metrics=self.metrics,
            show=show,
        )

    def _keep_rooms(self, clock: Clock, registry: CollectorRegistry) -> "LocalRooms | None":
        """Local copies of the free capacity of clusters, for estimators that can be followed."""
        if self._estimators is None or not self._options.max_room_age_seconds:
            return None
        # Without estimators numpy is not loaded.
        from karpool.scheduler.estimates.local_rooms import LocalRooms
        from karpool.scheduler.estimates.room_keeper import RoomKeeper
        from karpool.scheduler.estimates.room_metrics import follow_rooms

        rooms = LocalRooms(
            self.view.ledger,
            clock,
            max_age_seconds=self._options.max_room_age_seconds,
            on_freed=self._room_in,
        )
        self._keeper = RoomKeeper(self._estimators.channel, rooms, clock)
        follow_rooms(registry, rooms, self._keeper, self._cluster_names)
        return rooms

    def _cluster_names(self) -> list[str]:
        return [cluster.name for cluster in self.view.clusters.all()]

    def _room_in(self, clusters: Iterable[str]) -> None:
        self.view.room_in(clusters)

    def _follow_clusters(self, old: MemberCluster | None, new: MemberCluster | None) -> None:
        if self._estimators is not None and new is None:
            self._estimators.keep({cluster.name for cluster in self.view.clusters.all()})
        if old is None or new is None:
            self._follow_rooms()

    def _follow_rooms(self) -> None:
        if self._keeper is not None and self._estimators is not None and self._is_leading:
            self._keeper.keep(
                {cluster.name for cluster in self.view.clusters.all() if self._estimators.asks(cluster)}
            )

    async def prepare(self, stack: AsyncExitStack) -> None:
        if self._estimators is not None:
            stack.push_async_callback(self._estimators.close)

    async def run(self, stop: Stop) -> None:
        """Run until `stop` is set and the writes in progress are finished."""
        self.metrics.leading(True)
        self._is_leading = True
        self._follow_rooms()
        async with asyncio.TaskGroup() as group:
            verifying = group.create_task(self._verify())
            try:
                await self._controller.run(self._placer, stop, grace_seconds=self._options.grace_seconds)
            finally:
                verifying.cancel()
                if self._keeper is not None:
                    await self._keeper.close()
                if self._rooms is not None:
                    await self._rooms.close()

    def _waiting_bindings(self) -> list[Binding]:
        versions = (self.view.bindings.get(key) for key in self.queue.waiting())
        return [
            version.binding for version in versions if version is not None and version.binding is not None
        ]

    async def _verify(self) -> None:
        """Periodically ask estimators which promised replicas have arrived, and follow their capacity."""
        while True:
            for _ in range(LOOKS_PER_VERIFY):
                await self.view.clock.sleep(VERIFY_SECONDS / LOOKS_PER_VERIFY)
                if self._rooms is not None:
                    self._rooms.look()
            self.view.room_in(await self._asks.verify(self.view.clusters.get))

    def _delay(self, attempts: int) -> float:
        if self._options.gates[PRIORITY]:
            return BACKOFF_SECONDS[min(attempts, len(BACKOFF_SECONDS)) - 1]
        doubled = self._options.base_delay_seconds * 2.0 ** min(attempts - 1, 40)
        return min(doubled, self._options.max_delay_seconds)
