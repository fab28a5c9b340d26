"""The consolidator's control loop: makes plans with `planning` and executes them with `actuator`.

Every pass reads the stop switch and the records of active moves from the API server, and advances each move
as far as possible. At intervals it makes a plan and begins its moves. All state is in the cluster, so any
pass may be the first after a restart. If the view is stale, the consolidator does nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

import structlog

from karpool.cluster.market.market import Market
from karpool.consolidation.bound.certificate import certified
from karpool.consolidation.execution import in_flight_view, sharing
from karpool.consolidation.execution.actuator import MoveActuator, RecordContext
from karpool.consolidation.execution.contract_exchange import ContractExchange
from karpool.consolidation.execution.metrics import ConsolidationMetrics
from karpool.consolidation.execution.move_history import (
    has_settled,
    measure,
    redisturbed,
    resting,
    resting_owners,
    to_forget,
)
from karpool.consolidation.execution.options import (
    KEEP_SECONDS,
    STOP_NAME,
    STOP_NAMESPACE,
    ConsolidatorOptions,
)
from karpool.consolidation.execution.record import MovePhase, MoveRecord, PlanBound, bound_of
from karpool.consolidation.execution.reporting import MoveReporter
from karpool.consolidation.execution.step import ExecutionSettings
from karpool.consolidation.execution.watching import Watching
from karpool.consolidation.planning.plan import ConsolidationPlan, Move
from karpool.consolidation.planning.plan_cache import PlanCache
from karpool.consolidation.policy.budgets import use_of
from karpool.consolidation.policy.options import DEADLINE_SECONDS
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.settings import PlanSettings, parse_rate, parse_window
from karpool.consolidation.view import ClusterView
from karpool.kube.errors import KubeError, LeadershipLost, NotFound
from karpool.manager.controller import Environment
from karpool.manager.stop import Stop
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.api_resources import CONFIGMAPS, ObjectKey
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings

log = structlog.get_logger(__name__)
T = TypeVar("T")
COMPONENT = "karpool-consolidator"
_REST_AFTER_PLANNING = 4.0


@dataclass(frozen=True)
class ConsolidatorSettings:
    plan: PlanSettings = field(default_factory=lambda: PlanSettings(deadline_seconds=DEADLINE_SECONDS))
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    smart_pods: SmartPodSettings = field(default_factory=SmartPodSettings)
    namespace: str = STOP_NAMESPACE  # of records
    stop_switch: tuple[str, str] = (STOP_NAMESPACE, STOP_NAME)
    plan_seconds: float = 10.0  # between two plans
    idle_seconds: float = 300.0  # between two plans of an unchanged cluster without moves
    certify_seconds: float = 6 * 3600.0  # between two certificates: one takes seconds of CPU time
    pass_seconds: float = 2.0  # between two passes over active moves
    most_in_flight: int = 20  # moves at once
    keep_seconds: float = KEEP_SECONDS  # records of finished moves
    plans: bool = True  # False: only execute records that exist
    once: bool = False  # make one plan, execute it and stop


def consolidator_settings(options: ConsolidatorOptions) -> ConsolidatorSettings:
    """Build the settings from the options of the command or of a scenario."""
    plan = replace(
        options.settings(options.override),
        windows=tuple(map(parse_window, options.maintenance_windows)),
        rates=tuple(map(parse_rate, options.rates)),
    )
    return ConsolidatorSettings(
        plan=plan,
        execution=ExecutionSettings(
            quiet_seconds=options.quiet_period_seconds,
            launch_seconds=options.launch_timeout_seconds or None,
            settle_seconds=options.settle_seconds,
        ),
        smart_pods=options.smart_pods,
        namespace=options.namespace,
        stop_switch=(options.namespace, options.stop_configmap),
        plan_seconds=max(options.interval_seconds, 1.0),
        most_in_flight=options.max_moves,
        keep_seconds=options.keep_moves_seconds,
        once=options.once,
    )


@dataclass(frozen=True)
class _Idle:
    """How long planning pauses for an unchanged cluster that has nothing to move.

    Decisions also depend on time (ages, windows), so the pause starts at one interval and doubles. A change
    ends it.
    """

    until: float = float("-inf")
    seconds: float = 0.0
    changes: int = -1

    def lasts(self, now: float, changes: int) -> bool:
        return changes == self.changes and now < self.until

    def after(self, fruitless: bool, changes: int, now: float, options: ConsolidatorSettings) -> "_Idle":
        if not fruitless:
            return _Idle()
        doubled = 2 * self.seconds if changes == self.changes else options.plan_seconds
        seconds = min(max(doubled, options.plan_seconds), max(options.idle_seconds, options.plan_seconds))
        return _Idle(now + seconds, seconds, changes)


class Consolidator:
    """Runs the passes. With `show` it is a dry run: plans are shown, and nothing is written."""

    def __init__(
        self,
        environment: Environment,
        options: ConsolidatorSettings | None = None,
        *,
        market: Market | None = None,
        show: Callable[[ConsolidationPlan], None] | None = None,
        exchange: ContractExchange | None = None,
    ) -> None:
        """`exchange` shares the use of the contract with the other clusters."""
        self._exchange = exchange
        self.options = options or ConsolidatorSettings()
        self.metrics = ConsolidationMetrics(environment.registry)
        self.ledger: dict[str, MoveRecord] = {}  # every known record, by name
        self.plan: ConsolidationPlan | None = None  # the latest
        client = self._client = environment.client
        self._clock, self._status = client.clock, environment.status
        self._show, self._off_loop = show, environment.off_loop
        self._watching = Watching(
            client, self.options.smart_pods, market=market, stop_switch=self.options.stop_switch
        )
        self.informers = (self._watching.informers,)
        self._announcer = MoveReporter(environment.events, self._clock)
        self.executor = MoveActuator(
            client,
            self._watching.smart_pods,
            self.options.execution,
            namespace=self.options.namespace,
            check=environment.check,
            changed=self._changed,
            redisturbed=lambda owners: redisturbed(owners, self.ledger.values(), self._clock.now()),
        )
        self._closed: dict[str, Infeasible[ConsolidationReason]] = {}
        self._next_plan = float("-inf")
        self._idle = _Idle()
        self._planning = PlanCache()
        self._next_certificate = float("-inf")
        self._bound: PlanBound | None = None  # the latest certificate
        self._view: ClusterView | None = None  # of this pass
        self._last_view: ClusterView | None = None
        self._planned = False
        self.ended: Counter[MovePhase] = Counter()  # moves that ended here, by final phase

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Do nothing: the first pass creates what is missing, and later passes retry."""

    async def run(self, stop: Stop) -> None:
        """Run until `stop` is set, or with `once` until every move has ended."""
        started = False
        while not stop.is_set():
            busy = True
            try:
                if not started:
                    await self._start()
                    started = True
                busy = await self.one_pass()
                if self.options.once and self._planned and not busy:
                    return
            except LeadershipLost:
                raise
            except KubeError as error:
                log.warning("pass failed", reason=str(error))
            await stop.sleep(self.options.pass_seconds if busy else self.options.plan_seconds)

    async def _start(self) -> None:
        if self._show is not None:
            return
        await self.executor.prepare()
        for problem in await ensure_prerequisites(self._client, self.options.smart_pods):
            log.warning("replacements will fail", reason=problem)
        self.ledger = {record.name: record for record in await self.executor.records()}

    # One pass

    async def one_pass(self) -> bool:
        """Run one pass; return whether moves are still active."""
        self._view = None
        # Intervals use the monotonic clock, records the wall clock.
        now, tick = self._clock.now(), self._clock.monotonic()
        plan_due = (
            self.options.plans and tick >= self._next_plan and not (self.options.once and self._planned)
        )
        plan_due = plan_due and not self._idle.lasts(tick, self._watching.changes)
        if self._show is not None:
            if plan_due:
                self._next_plan = tick + self.options.plan_seconds
                self._show(await self._make_plan())
                self._planned = True
            return False
        stop = await self._read_stop()
        if plan_due:
            await self.executor.sweep(self._watching.marked())
        records = await self.executor.records(active=True)
        self._know(records)
        if self._exchange is not None and not self._status.is_stale():
            self._view_now()  # makes our own machines known to the exchange
            await self._exchange.exchange(self._watching.cluster.market, records)
            self._view = None
        if records:
            seen = await self._seen(records, stop, now)
            for record in records:
                await self._advance(record, seen)
        if plan_due and not self._status.is_stale():
            began, changes = self._clock.monotonic(), self._watching.changes
            await self._plan_and_begin(stop)
            fruitless = self.plan is not None and not self.plan.moves and not records
            self._idle = self._idle.after(fruitless, changes, tick, self.options)
            # A cluster that is slow to plan is planned less often, which leaves CPU time for everything else.
            spent = self._clock.monotonic() - began
            self._next_plan = tick + max(self.options.plan_seconds, _REST_AFTER_PLANNING * spent)
            self._planned = True
            await self.executor.forget(self._to_forget())
        under_way = [record for record in self.ledger.values() if not record.phase.is_over]
        self.metrics.in_flight(under_way, stopped=stop is not None)
        self.metrics.saved(self.ledger.values(), now)
        return bool(under_way)

    async def _advance(self, record: MoveRecord, seen: RecordContext) -> None:
        """Advance one record; an API error of one record does not stop the others."""
        try:
            await self.executor.advance(record, seen)
        except LeadershipLost:
            raise
        except KubeError as error:
            log.warning("move not advanced", record=record.name, reason=str(error))

    async def _read_stop(self) -> Infeasible[ConsolidationReason] | None:
        """Read the switch from the API server, because it must work when watches do not."""
        namespace, name = self.options.stop_switch
        try:
            switch = await self._client.get(CONFIGMAPS, name, namespace=namespace, into=ConfigMap)
        except NotFound:
            switch = ConfigMap()
        self._watching.stop.put(ObjectKey(namespace, name), switch)
        return self._watching.stop.reason()

    async def _seen(
        self, records: Sequence[MoveRecord], stop: Infeasible[ConsolidationReason] | None, now: float
    ) -> RecordContext:
        if self._status.is_stale():
            return RecordContext(stop=stop, closed=self._closed)
        execution = self.options.execution
        waits = sharing.waiting_for(records, self._view_now()) if len(records) > 1 else {}
        looked_at = frozenset(
            record.name
            for record in records
            if stop is None
            and record.name not in waits
            and in_flight_view.is_looked_at(
                record, now, execution.quiet_seconds, self._watching.cluster.claim
            )
        )
        settling = [
            record
            for record in records
            if record.phase is MovePhase.SETTLING and now >= record.since + execution.settle_seconds
        ]
        if not looked_at and not settling:
            return RecordContext(stop=stop, closed=self._closed, waits_for=waits)
        view = self._view_now()
        self._closed = in_flight_view.closed_pools(view, self.options.plan, now)
        ledger, coming = list(self.ledger.values()), self._watching.held()

        def look() -> dict[str, tuple[Infeasible[ConsolidationReason], ...]]:
            return in_flight_view.objections(view, records, looked_at, self.options.plan, now, coming=coming)

        return RecordContext(
            stop=stop,
            closed=self._closed,
            waits_for=waits,
            objections=await self._off_loop(look),
            cordoned=frozenset(
                machine.name
                for machine in view.machines
                if machine.node is not None and machine.node.is_unschedulable
            ),
            arrived_prices={r.name: in_flight_view.arrived_price(r, view) for r in records if r.arrived},
            measured={
                record.name: measure(record, ledger, view, self._watching.owners)
                for record in settling
                if has_settled(record, view, self._watching.owners, now)
            },
        )

    async def _plan_and_begin(self, stop: Infeasible[ConsolidationReason] | None) -> None:
        plan = await self._make_plan()
        self._closed = in_flight_view.closed_pools(self._view_now(), self.options.plan, self._clock.now())
        self._announcer.plan(plan, self._view_now())
        if stop is not None or plan.stopped is not None:
            return
        now = self._clock.now()
        left_alone, owners = resting(self.ledger.values(), now), resting_owners(self.ledger.values(), now)
        owner_of = self._watching.owners.of
        room = self.options.most_in_flight - sum(not record.phase.is_over for record in self.ledger.values())
        for number, move in enumerate(plan.moves):
            if room <= 0:
                log.info(
                    "moves deferred", moves=len(plan.moves) - number, in_flight=self.options.most_in_flight
                )
                break
            rests = [left_alone[name] for name in move.names if name in left_alone]
            rests += (owners[owner_of(pod.pod)] for pod in move.pods if owner_of(pod.pod) in owners)
            if rest := next(iter(rests), None):
                log.debug("move deferred", move=move.id, until=rest.until, reason=rest.record.message)
                continue
            room -= await self.begin(move)

    async def begin(self, move: Move) -> bool:
        view = self._view_now()
        try:
            wanted = in_flight_view.wanted_of(move, view)
            record = await self.executor.begin(move, wanted, self._clock.now(), bound=self._bound)
        except Invalid as error:
            log.warning("move record not written", move=move.id, reason=str(error))
            return False
        if record is None:
            return False
        self.metrics.approved(move)
        self._announcer.approved(move, view)
        return True

    async def _make_plan(self) -> ConsolidationPlan:
        view = in_flight_view.snapshot_with_moves(
            self._view_now(), self.ledger.values(), coming=self._watching.held()
        )
        settings, now, start = self.options.plan, self._clock.now(), self._clock.monotonic()

        certifies = start >= self._next_certificate
        if certifies:
            self._next_certificate = start + self.options.certify_seconds

        def elapsed() -> float:
            return self._clock.monotonic() - start

        def work() -> ConsolidationPlan:
            plan = self._planning.plan(view, settings, now, elapsed=elapsed)
            if not certifies:
                return plan
            return certified(plan, view, settings, now, elapsed=elapsed, whole_nodes=False)

        plan: ConsolidationPlan = await self._off_loop(work)
        self.plan = plan
        self._bound = bound_of(plan) or self._bound
        self.metrics.planned(plan, self._clock.monotonic() - start)
        self.metrics.consuming(use_of(view.machines, view.in_flight))
        return plan

    def _view_now(self) -> ClusterView:
        if self._view is None:
            problems = list(map(str, self.executor.unreadable))
            view = self._watching.view(self.ledger.values(), problems, self._clock.now())
            self._view = self._last_view = view
        return self._view

    # Records

    def _know(self, records: Iterable[MoveRecord]) -> None:
        """Replace our copy of active records by the server's; missing ones were deleted."""
        active = {record.name: record for record in records}
        for name in [name for name, record in self.ledger.items() if not record.phase.is_over]:
            if name not in active:
                del self.ledger[name]
        self.ledger |= active

    def _changed(self, before: MoveRecord | None, after: MoveRecord) -> None:
        self.ledger[after.name] = after
        if before is None or before.phase is not after.phase:
            log.info(
                "move",
                record=after.name,
                phase=str(after.phase),
                nodes=list(after.nodes),
                reason=after.reason,
                message=after.message,
            )
            self.ended[after.phase] += after.phase.is_over
            self.metrics.moved(before, after)
            self._announcer.moved(after, self._last_view)

    def _to_forget(self) -> list[MoveRecord]:
        longest = max((rate.seconds for rate in self.options.plan.rates), default=0.0)
        keep_seconds = max(self.options.keep_seconds, longest)
        old = to_forget(self.ledger.values(), self._clock.now(), keep_seconds=keep_seconds)
        for record in old:
            del self.ledger[record.name]
        return old
