"""A scheduler put together from its parts, for a process, a test or an embedded fleet.

Everything comes from outside: the client, the clock in it, who is asked for
availability, and whether we may still write. One instance is one term of leadership;
the next leader is a new one.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from karpool.manager.controller import Environment
from karpool.manager.feature_gates import OVERCOMMIT_PROTECTION, PRIORITY, Gates, scheduler_gates
from karpool.manager.metrics import QueueMetrics
from karpool.manager.stop import Stop
from karpool.model.karmada.binding import BindingKey
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.scheduler.controller import options
from karpool.scheduler.controller.binding_store import SchedulerStores
from karpool.scheduler.controller.binding_writer import BindingWriter
from karpool.scheduler.controller.controller import WORKERS, SchedulerController
from karpool.scheduler.controller.metrics import SchedulerMetrics
from karpool.scheduler.controller.queue import BACKOFF_SECONDS, UNSCHEDULABLE_SECONDS, BindingQueue
from karpool.scheduler.controller.reconciler import BindingReconciler, Show
from karpool.scheduler.controller.reporting import BindingReporter
from karpool.scheduler.controller.settings import SchedulingSettings
from karpool.scheduler.cycle.cycle import SchedulingCycle
from karpool.scheduler.estimates.availability import AvailabilityReader
from karpool.scheduler.estimates.estimate_cache import EstimatorApi
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.metrics import PromiseMetrics
from karpool.scheduler.promises.promise import PromiseLifetime

if TYPE_CHECKING:
    from karpool.scheduler.estimates.estimator_client import EstimatorClient

VERIFY_SECONDS = 2.0
QUEUE = "scheduler-queue"  # what Karmada calls its own in metrics


@dataclass(frozen=True)
class SchedulerSettings:
    name: str = options.SCHEDULER_NAME
    gates: Gates = field(default_factory=scheduler_gates)
    settings: SchedulingSettings = field(default_factory=SchedulingSettings)
    lifetime: PromiseLifetime = field(default_factory=PromiseLifetime)
    workers: int = WORKERS
    unschedulable_seconds: float = UNSCHEDULABLE_SECONDS
    hold_down_seconds: float = 60.0
    grace_seconds: float = 10.0
    # Without priorities, failures come back after these, doubled each time.
    base_delay_seconds: float = 0.005
    max_delay_seconds: float = 1000.0


class Scheduler:
    """`asker` None: there are no estimators. `estimators` are those that are ours to close."""

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
        client, registry = environment.client, environment.registry
        promises = PromiseMetrics(registry)
        protected = use.gates[OVERCOMMIT_PROTECTION]
        self.view = SchedulerStores(
            client.clock, PromiseLedger(use.lifetime, promises.released) if protected else None
        )
        if self.view.ledger is not None:
            promises.follow(self.view.ledger, client.clock.monotonic)
        self._asks = AvailabilityReader(
            use.settings,
            client.clock,
            ledger=self.view.ledger,
            asker=asker or estimators,
            hold_down_seconds=use.hold_down_seconds,
            on_freed=self._room_in,
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

    def _room_in(self, clusters: set[str]) -> None:
        self.view.room_in(clusters)

    def _follow_clusters(self, old: MemberCluster | None, new: MemberCluster | None) -> None:
        if self._estimators is not None and new is None:
            self._estimators.keep({cluster.name for cluster in self.view.clusters.all()})

    async def prepare(self, stack: AsyncExitStack) -> None:
        if self._estimators is not None:
            stack.push_async_callback(self._estimators.close)

    async def run(self, stop: Stop) -> None:
        """Until `stop` is set, and what was under way is written."""
        self.metrics.leading(True)
        async with asyncio.TaskGroup() as group:
            verifying = group.create_task(self._verify())
            try:
                await self._controller.run(self._placer, stop, grace_seconds=self._options.grace_seconds)
            finally:
                verifying.cancel()

    async def _verify(self) -> None:
        """Ask estimators now and then what of the promises has arrived."""
        while True:
            await self.view.clock.sleep(VERIFY_SECONDS)
            self.view.room_in(await self._asks.verify(self.view.clusters.get))

    def _delay(self, attempts: int) -> float:
        if self._options.gates[PRIORITY]:
            return BACKOFF_SECONDS[min(attempts, len(BACKOFF_SECONDS)) - 1]
        doubled = self._options.base_delay_seconds * 2.0 ** min(attempts - 1, 40)
        return min(doubled, self._options.max_delay_seconds)
