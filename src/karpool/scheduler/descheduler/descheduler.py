"""Takes replicas that cannot start off their clusters, so that the scheduler places them elsewhere.

It handles every kind of workload that is divided by availability, of every scheduler unless some are named;
suspended ones are skipped. Running replicas are never taken. Each cluster is asked independently: one that
does not answer keeps its replicas. The same patch writes on the binding what was taken and from where
(`cool_down`).
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog
from prometheus_client import Counter

from karpool.cluster.changes import PutDropSink
from karpool.kube.api.decoding import Object
from karpool.kube.errors import KubeError
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.manager.controller import Environment
from karpool.manager.metrics import describe_process
from karpool.manager.stop import Stop
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import Binding, TargetCluster
from karpool.model.karmada.placement import ReplicaStrategy, read_placement
from karpool.model.kubernetes.api_resources import (
    CLUSTERRESOURCEBINDINGS,
    RESOURCEBINDINGS,
    ApiResource,
    ObjectKey,
)
from karpool.scheduler.controller.binding_writer import BindingWriter, WriteOutcome
from karpool.scheduler.controller.reporting import DESCHEDULED, DESCHEDULING_FAILED, BindingReporter
from karpool.scheduler.cycle import cool_down
from karpool.scheduler.cycle.binding_store import read
from karpool.scheduler.cycle.components import is_divided
from karpool.scheduler.descheduler.lowering import LoweredTarget, lower_targets, waiting_clusters
from karpool.scheduler.estimates.estimate_cache import EstimatorReply
from karpool.scheduler.promises.landed_replicas import landing_of
from karpool.wire.requests import WorkloadReference

if TYPE_CHECKING:
    from karpool.scheduler.estimates.estimator_client import EstimatorClient

log = structlog.get_logger(__name__)

TRIES = 3  # attempts for one binding that others change meanwhile
_BY_AVAILABILITY = (ReplicaStrategy.AGGREGATED, ReplicaStrategy.DYNAMIC)


class UnschedulableSource(Protocol):
    async def unschedulable(
        self, cluster: str, resource: WorkloadReference, threshold_seconds: float
    ) -> EstimatorReply: ...


@dataclass(frozen=True)
class DeschedulerSettings:
    name: str = "karpool-descheduler"
    schedulers: Collection[str] = ()  # whose bindings; empty: all
    interval_seconds: float = 120.0
    threshold_seconds: float = 300.0
    cool_down_seconds: float = 600.0
    workers: int = 8


@dataclass(frozen=True)
class DescheduledReplicas:
    """The replicas that were, or in a dry run would be, taken off."""

    binding: Binding
    targets: tuple[TargetCluster, ...]
    changes: tuple[LoweredTarget, ...]

    @property
    def message(self) -> str:
        total = sum(change.taken_back for change in self.changes)
        parts = ", ".join(
            f"{target.taken_back} replica(s) in cluster({target.cluster})" for target in self.changes
        )
        return f"Binding has been descheduled, {parts}, {total} total descheduled replica(s)"


class Descheduler:
    def __init__(
        self,
        environment: Environment,
        asks: UnschedulableSource,
        chosen: DeschedulerSettings | None = None,
        *,
        estimators: "EstimatorClient | None" = None,
        show: Callable[[DescheduledReplicas], None] | None = None,
    ) -> None:
        self._options = chosen or DeschedulerSettings()
        client, registry = environment.client, environment.registry
        self._clock, self._status = client.clock, environment.status
        self._estimators = estimators  # to close at the end
        self._asks = asks
        self._show = show
        self._writer = BindingWriter(client, check=environment.check)
        self._announcer = BindingReporter(environment.events)
        self._bindings: dict[tuple[ApiResource, ObjectKey], Binding | None] = {}
        kinds = (RESOURCEBINDINGS, CLUSTERRESOURCEBINDINGS)
        self.informers = (InformerSet(client, [self._watched(resource) for resource in kinds]),)
        self._turns = asyncio.Semaphore(self._options.workers)
        describe_process(registry)
        self._taken = Counter(
            "karpool_descheduler_replicas", "Replicas that were removed.", registry=registry
        )
        results = Counter(
            "karpool_descheduler_bindings", "Bindings that were checked.", ("result",), registry=registry
        )
        self._results = {result: results.labels(result) for result in ("kept", "descheduled", "error")}

    def _watched(self, resource: ApiResource) -> WatchedKind[Object]:
        def put(key: ObjectKey, raw: Object) -> None:
            self._bindings[resource, key] = read(raw).binding

        def drop(key: ObjectKey) -> None:
            self._bindings.pop((resource, key), None)

        return WatchedKind(resource, dict, PutDropSink(put, drop))

    async def prepare(self, stack: AsyncExitStack) -> None:
        if self._estimators is not None:
            stack.push_async_callback(self._estimators.close)

    async def run(self, stop: Stop) -> None:
        while await self._status.fresh(stop):
            await self.run_once()
            if await stop.sleep(self._options.interval_seconds):
                return

    async def run_once(self) -> None:
        """Check all bindings once; an error of one is logged and does not affect others."""
        bindings = list(self._bindings.values())
        concerned = [binding for binding in bindings if binding is not None and self._concerns(binding)]
        await asyncio.gather(*(self._one(binding) for binding in concerned))

    def _concerns(self, binding: Binding) -> bool:
        if binding.is_deleting or binding.is_suspended or not binding.targets or not is_divided(binding):
            return False
        if self._options.schedulers and binding.scheduler_name not in self._options.schedulers:
            return False
        return applied_strategy(binding) in _BY_AVAILABILITY

    async def _one(self, binding: Binding) -> None:
        async with self._turns:
            try:
                result = await self._deschedule(binding)
            except KubeError as error:
                result = "error"
                log.warning("binding not descheduled", binding=str(binding.key), reason=str(error))
        self._results[result].inc()

    async def _deschedule(self, binding: Binding) -> str:
        for _ in range(TRIES):
            taken = await self._find(binding)
            if taken is None:
                return "kept"
            if self._show is not None:
                self._show(taken)
                return "descheduled"
            written = await self._writer.result(binding, self._patch(taken))
            if written.outcome is WriteOutcome.WRITTEN:
                self._announcer.report(binding, "Normal", DESCHEDULED, taken.message)
                self._taken.inc(sum(change.taken_back for change in taken.changes))
                log.info("binding descheduled", binding=str(binding.key), what=taken.message)
                return "descheduled"
            if written.outcome is not WriteOutcome.CONFLICT:
                self._announcer.report(binding, "Warning", DESCHEDULING_FAILED, written.message)
                return "error"
            current = await self._writer.read(binding.key)
            if current is None or not self._concerns(current):
                return "kept"
            binding = current
        return "error"

    async def _find(self, binding: Binding) -> DescheduledReplicas | None:
        status_by_cluster = {status.cluster: status for status in reversed(binding.aggregated)}
        ready = {
            target.name: landing_of(binding.template, status_by_cluster.get(target.name)).ready
            for target in binding.targets
        }
        waiting = waiting_clusters(binding.targets, ready)
        if not waiting:
            return None
        template = binding.template
        about = WorkloadReference(template.api_version, template.kind, template.namespace, template.name)
        threshold = self._options.threshold_seconds
        replies = await asyncio.gather(
            *(self._asks.unschedulable(name, about, threshold) for name in waiting)
        )
        stuck = {
            name: reply.value for name, reply in zip(waiting, replies, strict=True) if reply.value is not None
        }
        targets, changes = lower_targets(binding.targets, ready, stuck)
        if not changes:
            return None
        emptied = {change.cluster for change in changes if not change.after}
        # An entry without replicas would keep an empty workload there.
        return DescheduledReplicas(
            binding, tuple(t for t in targets if t.name not in emptied), tuple(changes)
        )

    def _patch(self, taken: DescheduledReplicas) -> Object:
        binding = taken.binding
        lowered = {change.cluster: change.taken_back for change in taken.changes}
        note = cool_down.noted(
            binding.annotations, lowered, self._clock.now(), self._options.cool_down_seconds
        )
        meta = {"resourceVersion": binding.resource_version, "annotations": {cool_down.ANNOTATION: note}}
        return {
            "metadata": meta,
            "spec": {"clusters": [target.to_json() for target in taken.targets] or None},
        }


def applied_strategy(binding: Binding) -> ReplicaStrategy | None:
    """How the current result was divided; None if unknown."""
    if binding.applied_placement is None:
        return None
    try:
        return read_placement(msgspec.json.decode(binding.applied_placement, type=dict)).strategy
    except (msgspec.MsgspecError, RecursionError, Invalid):
        return None
