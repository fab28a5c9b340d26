"""The scheduler: watch bindings and clusters, place what is ours, wake what waits.

Nothing is decided before every binding was read and every promise found again. A
binding that finds no room waits until some appears: a member's summary, a released
promise, a new cluster. Signs of room are gathered for a moment, so that many of them
are one look at those who wait. Stopping finishes the writes under way.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.decision_id import decision_scope
from karpool.kube.errors import LeadershipLost
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.kube.work_queue import QueueShutDown
from karpool.manager.readiness import ManagerStatus
from karpool.manager.stop import Stop
from karpool.model.karmada.binding import Binding, BindingKey, binding_key
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.kubernetes.api_resources import CLUSTERRESOURCEBINDINGS, CLUSTERS, RESOURCEBINDINGS
from karpool.scheduler.controller import wake_ups
from karpool.scheduler.controller.binding_store import BindingVersion, Object, SchedulerStores
from karpool.scheduler.controller.metrics import Event, SchedulerMetrics
from karpool.scheduler.controller.queue import BindingQueue
from karpool.scheduler.controller.reconciler import BindingReconciler, QueueAction, ReconcileResult

log = structlog.get_logger(__name__)

WORKERS = 16
# Signs of room that come within this are one; with many waiting, looking at all of them takes longer.
GATHER_SECONDS = 0.02
GATHER_SECONDS_PER_WAITING = 0.002
EXPIRY_SECONDS_MAX = 30.0

Follow = Callable[[MemberCluster | None, MemberCluster | None], None]


class SchedulerController:
    """`follow` is told of every change of a cluster: before and after."""

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
                WatchedKind(RESOURCEBINDINGS, dict, _Each(self._on_binding)),
                WatchedKind(CLUSTERRESOURCEBINDINGS, dict, _Each(self._on_binding)),
                WatchedKind(CLUSTERS, dict, _Each(self._on_cluster)),
            ],
        )

    async def run(self, placer: BindingReconciler, stop: Stop, *, grace_seconds: float = 10.0) -> None:
        """Place bindings until `stop` is set; then finish what is under way."""
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
        """Everything was listed: find all promises again, then look at every binding of ours."""
        self._view.rebuild()
        self._started = True
        for binding_version in self._known.all():
            if binding_version.is_ours(self._name):
                self._add(binding_version, "BindingAdd")

    def room_in(self, clusters: Iterable[str]) -> None:
        """There may be more room in these."""
        self._room.update(clusters)
        if self._room:
            self._room_appeared.set()

    # What wakes it

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

    # What it does

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
        except Exception as error:  # a bug, or an object nobody thought of, must not stop the others
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
    """Whether nothing changed that promises depend on; most writes of a status are of this kind."""
    held = before.binding if before is not None else None
    return held is not None and held.generation == now.generation and held.aggregated == now.aggregated


class _Each:
    """A sink that hands changes over one by one; one that cannot be handled does not stop the rest."""

    def __init__(self, handler: Callable[[ObjectChange[Object]], None]) -> None:
        self._handler = handler

    def apply(self, changes: Iterable[ObjectChange[Object]], /) -> None:
        for change in changes:
            try:
                self._handler(change)
            except Exception:
                log.exception("change not understood", object=str(change.key))
