"""The Intelligent Scheduling Controller: observe, decide, act, report, on every change.

It runs one step at a time over the whole cluster. Changes and timers request a step, and after `resync` one
runs anyway. `scale_up` decides and `actuator` writes; this module only calls them in order.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.market import Market
from karpool.gpu.allocation.allocator import AllocatorSettings
from karpool.gpu.controller.actuator import actuate
from karpool.gpu.controller.allocator_state import AllocatorState, View
from karpool.gpu.controller.api_actuator import ApiScaleUpActuator
from karpool.gpu.controller.cluster_view import (
    GpuClusterReader,
    GpuClusterView,
    enforcers,
    learn_drivers,
    nodes_shown,
    pods_apart,
    step_view,
)
from karpool.gpu.controller.enforcement import why_unenforced
from karpool.gpu.controller.metrics import ScaleUpMetrics
from karpool.gpu.controller.mode import ScalerMode
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.gpu.controller.reporting import WaitReporter
from karpool.gpu.controller.step_report import StepReport
from karpool.gpu.controller.told_status import statuses, write_statuses
from karpool.gpu.controller.wake_ups import StepTriggers
from karpool.gpu.controller.worker_pods import WorkerPods, unreadable
from karpool.gpu.records.scale_up_object import SCALEUPS, definition
from karpool.gpu.records.written_records import WrittenRecords
from karpool.gpu.scale_up.candidates import CandidateFinder
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.input import ScaleUpInput, ScaleUpPlan, WaitExplanation
from karpool.gpu.scale_up.step import plan_step
from karpool.gpu.strategies import registry as strategies
from karpool.kube.decision_id import decision_scope
from karpool.kube.errors import AlreadyExists, KubeError, LeadershipLost
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.kube.work_queue import QueueObserver, Requeue, WorkQueue
from karpool.manager.controller import Environment
from karpool.manager.readiness import STALE_POLL_SECONDS
from karpool.manager.stop import Stop
from karpool.model.devices.gpu_quota import QUOTAS
from karpool.model.devices.quota import quota_room
from karpool.model.dra.device import DeviceSlice
from karpool.model.kubernetes.api_resources import CRDS, ObjectKey
from karpool.packing.dra.driver_templates import DriverTemplates
from karpool.provisioning.candidates.attempts import resting_until
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.claims.claim_progress import ClaimProgress
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.backend import ProvisioningBackend
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend

log = structlog.get_logger(__name__)

STEP = "step"
# We may lack access to these kinds: pods that depend on volumes, namespace labels or claims stay pending
# then.
REFINING = Aspect.NAMESPACES | Aspect.VOLUMES | Aspect.DRA | Aspect.OVERLAYS
ASPECTS = Aspect.DEVICES | Aspect.DEVICE_QUOTAS | Aspect.NODECLAIMS | Aspect.POOLS | Aspect.RECORDS
TOGETHER_SECONDS = 0.05  # changes within this time are handled in one step


def _allocator(options: GpuScalerOptions) -> AllocatorSettings:
    strategy = strategies.named(options.strategy)  # each scaler has its own, because a strategy learns
    return AllocatorSettings(strategy=strategy, policy=options.isolation_policy)


class GpuScaler:
    def __init__(
        self,
        environment: Environment,
        options: GpuScalerOptions | None = None,
        *,
        market: Market | None = None,
        metrics: ScaleUpMetrics | None = None,
        monitor: ClaimMonitor | None = None,
        backend: ProvisioningBackend | None = None,
        shapes: Mapping[str, Sequence[DeviceSlice]] | None = None,
        tell: QueueObserver | None = None,
    ) -> None:
        """`backend` is the smart pod by default; another one brings its own monitor. `shapes` are what
        drivers would publish on new nodes, by instance type.
        """
        client = environment.client
        self.options = options or GpuScalerOptions()
        self._status = environment.status
        self.metrics = metrics
        self.last_plan = ScaleUpPlan()
        self.steps = 0
        self._report = StepReport(metrics)
        self._client = client
        self._clock = client.clock
        settings, namespace = self.options.scale_up, self.options.smart_pod_namespace
        self._settings = settings
        self.monitor = monitor or ClaimMonitor(client.clock)
        self.backend = backend or SmartPodBackend(
            client, self.options.smart_pods, self.monitor, RequestPurpose.SCALE_UP
        )
        self.ladders = CandidateFinder(market or Market())
        workers = WorkerPods(self.options.scheduler_name, self.options.default_pool, self.options.mode)
        self._templates = DriverTemplates(shapes)
        self.ladders.nodes.templates = self._templates
        self._cluster = Cluster(ASPECTS | REFINING, market=self.ladders.market, keeps=workers.is_worker)
        self._triggers = StepTriggers(self._cluster, workers)
        written = WrittenRecords()
        self._reader = GpuClusterReader(workers, written, namespace=namespace, hold_seconds=settings.hold)
        self.desk = AllocatorState(settings, _allocator(self.options))
        self.announcer = WaitReporter(client, lambda: workers.of(self._cluster.kept_pods), environment.events)
        self._hands = ApiScaleUpActuator(
            client,
            self.backend,
            self.desk,
            written,
            namespace=namespace,
            settings=settings,
            check=environment.check,
            being_given=lambda node: workers.being_given_on(self._cluster.kept_pods, node),
            apart=lambda candidate: pods_apart(self._cluster.snapshot(), candidate),
        )
        self._queue: WorkQueue[str] = WorkQueue(client.clock, chance=client.chance, tell=tell)
        self._cluster_watches = [
            # Quotas may be installed at any time, and apply from then on.
            replace(kind, look_out_seconds=1.0) if kind.resource == QUOTAS else kind
            for kind in cluster_watches(self._cluster, client.clock, refining=REFINING)
        ]
        kinds = [
            *self._cluster_watches,
            *self.monitor.watches,
            *self.backend.watches,
        ]
        # Registered first: it must still know deleted objects.
        self.informers = (InformerSet(client, [*self._wakers(), *kinds]),)
        # Ages use a clock that does not jump.
        self._wall, self._start = client.clock.now(), client.clock.monotonic()

    def _wakers(self) -> Iterator[WatchedKind[Any]]:
        watches = (*self._cluster_watches, *self.monitor.watches)
        for kind in {(kind.resource, kind.into, kind.selection): kind for kind in watches}.values():
            yield replace(kind, sink=_Waker(self._changed, partial(self._triggers.concerns, kind.resource)))
        for kind in self.backend.watches:
            yield replace(kind, sink=_Waker(self._changed, lambda change: True))

    def seen(self) -> GpuClusterView:
        """The current cluster."""
        return self._reader.read(self._cluster.snapshot(self._client.clock.now()))

    def _changed(self) -> None:
        self._queue.add_after(STEP, TOGETHER_SECONDS)

    # Running

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Create what is missing. Raises KubeError if that fails."""
        if not await self._is_installed():
            try:
                await self._client.create(CRDS, definition())
            except AlreadyExists:
                pass
            except KubeError as error:
                log.warning("ScaleUp CRD cannot be installed; apply it yourself", reason=str(error))
        for problem in await ensure_prerequisites(self._client, self.options.smart_pods):
            log.warning("prerequisites missing", reason=problem)

    async def run(self, stop: Stop) -> None:
        async with asyncio.TaskGroup() as group:
            announcing = group.create_task(self.announcer.run(), name="gpu-scaler announcer")
            self._queue.add(STEP)
            await stop.finish(self._queue.run(self._reconcile), self._queue.shut_down)
            announcing.cancel()

    async def _is_installed(self) -> bool:
        """By discovery, which everyone may read: the right to install CRDs is better not needed."""
        try:
            await self._client.get_path(f"/apis/{SCALEUPS.api_version}")
        except KubeError:
            return False
        return True

    async def _reconcile(self, key: str) -> Requeue | None:
        if self._status.is_stale():
            return Requeue(STALE_POLL_SECONDS)
        with decision_scope():
            return await self._step()

    async def _step(self) -> Requeue:
        seen = self.seen()
        self.ladders.use_pools(seen.snapshot.pools)
        if any(pod.worker is not None and pod.worker.item.system for pod in seen.workers.values()):
            learn_drivers(seen.snapshot, self._templates)
            self.ladders.use_nodes(nodes_shown(seen.snapshot), seen.snapshot.room.dra)
        view = self._view(seen)
        self.desk.sync_quotas(seen.quotas)
        triaged, world = self.desk.refresh(
            view, self.ladders, self.ladders.why_none, self._why_unenforced(view)
        )
        self._hands.world = world
        for item, _ in triaged.served:
            try:
                await self._hands.bind(item)
            except LeadershipLost:
                raise
            except KubeError as error:
                log.warning("pod not bound", pod=item.request.key, reason=str(error))
        plan = plan_step(world, self._settings)
        done = await actuate(plan, dict(world.records), self._hands)
        self.steps += 1
        self._report.report(world, plan, done.unwritten)
        self._after(world, plan, {**triaged.refused, **unreadable(seen.workers)})
        self._totals(view, seen.quota_keys)
        if self.options.mode is not ScalerMode.BRING_NODES:
            await write_statuses(self._client, statuses(seen, self.desk.allocator))
        if done.stale or done.failed:
            return Requeue(1.0)
        wake_at = plan.wake_at or view.now + self._settings.resync
        return Requeue(max(TOGETHER_SECONDS, wake_at - view.now))

    def _view(self, seen: GpuClusterView) -> View:
        now = self._wall + self._clock.monotonic() - self._start
        self.monitor.pools_seen(list(self.ladders.pools))
        self.monitor.tick()
        placeholders = self.backend.placeholders()
        names = {pod.claim for pod in placeholders} | {
            unit.claim for record in seen.records.values() for unit in record.active_units
        }
        claims: dict[str, ClaimProgress] = {}
        for name in names - {""}:
            progress = self.monitor.progress(name)
            if progress is not None:
                claims[name] = progress
        return step_view(
            seen,
            now=now,
            placeholders=placeholders,
            claims=claims,
            resting=self._resting(seen, now),
            busy=self._busy(),
            only_enforced=not self.options.accept_unenforced_shares,
        )

    def _why_unenforced(self, view: View) -> Callable[[WaitingWorker], str]:
        if self.options.accept_unenforced_shares:
            return lambda item: ""
        by_pool = enforcers(view.nodes, self.ladders.pools.values())
        return lambda item: why_unenforced(item, by_pool)

    def _busy(self) -> dict[str, frozenset[str]]:
        busy: dict[str, set[str]] = {}
        for entry in self.desk.allocator.ledger.entries():
            busy.setdefault(entry.node, set()).update(share.device for share in entry.taken)
        return {node: frozenset(devices) for node, devices in busy.items()}

    def _resting(self, seen: GpuClusterView, now: float) -> dict[str, float]:
        candidates = {
            rung.key: rung.candidate
            for pod in seen.workers.values()
            if pod.worker is not None and pod.worker.waits
            for rung in self.ladders(pod.worker.item)
        }
        if not candidates:
            return {}
        offerings = self.ladders.market.offerings
        offered = {pool.name: offerings.for_pool(pool) for pool in self.ladders.pools.values()}
        return resting_until(list(candidates.values()), offered, self.monitor.failures, now)

    def _after(self, world: ScaleUpInput, plan: ScaleUpPlan, refused: dict[str, WaitExplanation]) -> None:
        self.last_plan = plan
        self.announcer.tell([*plan.explanations.values(), *refused.values()])
        if self.metrics is not None:
            self.metrics.observe(
                self.seen().records.values(),
                world.placeholders,
                world.demand,
                self._holds(world),
                world.now,
                delete_tries={uid: times for uid, (_, times) in self.desk.deletes.items()},
            )

    def _totals(self, view: View, quota_keys: Mapping[str, ObjectKey]) -> None:
        quotas = self.desk.allocator.quotas
        rooms = {
            namespace: quota_room(quota, quotas.taken(namespace))
            for namespace, quota in quotas.quotas.items()
        }
        self.announcer.quota_alerts(rooms, quota_keys)
        self.announcer.refused_resizes(self.desk.refused_resizes)
        if self.metrics is not None:
            self.metrics.observe_pools(self.desk.pool_totals(view.nodes))
            self.metrics.observe_quotas(rooms)

    def _holds(self, world: ScaleUpInput) -> dict[str, int]:
        pools: dict[str, int] = {}
        for uid in world.holds:
            entry = self.desk.allocator.ledger.assumed.get(uid)
            if entry is not None:
                pools[entry.request.pool] = pools.get(entry.request.pool, 0) + 1
        return pools


class _Waker:
    def __init__(self, wake: Callable[[], None], matters: Callable[[ObjectChange[Any]], bool]) -> None:
        self._wake = wake
        self._matters = matters

    def apply(self, changes: Sequence[ObjectChange[Any]], /) -> None:
        if any(self._matters(change) for change in changes):
            self._wake()
