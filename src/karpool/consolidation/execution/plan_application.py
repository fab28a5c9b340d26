"""Applies a plan: writes the records, and executes them unless a consolidator holds the lease."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from karpool.cluster.market.market import Market
from karpool.consolidation.execution import in_flight_view
from karpool.consolidation.execution.actuator import MoveActuator
from karpool.consolidation.execution.controller import COMPONENT, Consolidator, ConsolidatorSettings
from karpool.consolidation.execution.record import MovePhase, MoveRecord, PlanBound
from karpool.consolidation.planning.plan import Move
from karpool.consolidation.view import ClusterView
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.leases import Leadership, LeaseElector, lead
from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend

LEASE = COMPONENT
POLL_SECONDS = 2.0


def summary(ended: Mapping[MovePhase, int]) -> str:
    """Summarise finished moves in one line, also if there were none."""
    made, undone, refused = (
        ended.get(phase, 0) for phase in (MovePhase.DONE, MovePhase.ROLLED_BACK, MovePhase.REJECTED)
    )
    if not made + undone + refused:
        return "no move was executed"
    return f"{made} moves done, {undone} rolled back, {refused} not started; see karpool get moves"


def executor_of(client: Client, options: ConsolidatorSettings) -> MoveActuator:
    """An actuator for callers that only write and read records."""
    smart_pods = SmartPodBackend(
        client, options.smart_pods, ClaimMonitor(client.clock), RequestPurpose.REPLACEMENT
    )
    return MoveActuator(client, smart_pods, options.execution, namespace=options.namespace)


async def apply(
    client: Client,
    moves: Sequence[Move],
    view: ClusterView,
    options: ConsolidatorSettings,
    *,
    market: Market | None = None,
    bound: PlanBound | None = None,
    told: Callable[[MoveRecord], None] = lambda record: None,
) -> list[MoveRecord]:
    """Have the leader execute the moves, and wait until all of them have ended.

    `bound` is the bound of the plan's certificate; `told` is called for every phase that a move reaches.
    Moves that are already active are waited for. On cancellation the next leader finishes the moves.
    """
    executor, clock = executor_of(client, options), client.clock
    await executor.prepare()
    for move in moves:
        await executor.begin(move, in_flight_view.wanted_of(move, view), clock.now(), bound=bound)
    stop, only = Stop(), replace(options, plans=False, once=False)

    async def led(leadership: Leadership) -> None:
        manager = Manager.of(
            client,
            lambda environment: Consolidator(environment, only, market=market),
            component=COMPONENT,
            check=leadership.check,
        )
        await manager.run(stop)

    elector = LeaseElector(client, LEASE, namespace=options.namespace)
    async with asyncio.TaskGroup() as group:
        leading = group.create_task(lead(elector, led, stop))
        try:
            return await _until_over(executor, clock, {move.id for move in moves}, told)
        finally:
            stop.set()
            await asyncio.wait((leading,))


async def _until_over(
    executor: MoveActuator, clock: Clock, ids: set[str], told: Callable[[MoveRecord], None]
) -> list[MoveRecord]:
    reached: dict[str, MovePhase] = {}
    while True:
        records = [record for record in await executor.records() if record.move.id in ids]
        for record in records:
            if reached.get(record.name) is not record.phase:
                reached[record.name] = record.phase
                told(record)
        if all(record.phase.is_over for record in records):
            return records
        await clock.sleep(POLL_SECONDS)
