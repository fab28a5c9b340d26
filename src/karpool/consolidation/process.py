"""From options to a running consolidator: probes first, then the lease, then the watches.

Only the leader watches and acts. Losing the lease ends the process: everything that was
intended is in the API server, and whoever leads next goes on from there. A plan that
somebody applies is written down and carried out by whoever leads, ourselves if nobody does.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from karpool.cluster.market.market import Market
from karpool.consolidation.execution import in_flight_view
from karpool.consolidation.execution.actuator import MoveActuator
from karpool.consolidation.execution.controller import COMPONENT, Consolidator, ConsolidatorOptions
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import ConsolidationPlan, Move
from karpool.consolidation.view import ClusterView
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock, RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.leases import Leadership, LeaseElector, lead
from karpool.kube.transport.http import HttpTransport
from karpool.manager.metrics import describe_process, follow_leadership
from karpool.manager.probes import HealthChecks, ProbeServer
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.market_file import market_of
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend
from karpool.wire.addresses import ListenAddress

LEASE = COMPONENT
POLL_SECONDS = 2.0


@dataclass(frozen=True)
class ProcessOptions:
    """`listen` are the addresses of probes and metrics."""

    kubeconfig: Path | None = None
    context: str = ""
    consolidator: ConsolidatorOptions = field(default_factory=ConsolidatorOptions)
    region: str = ""
    catalogue: Path | None = None  # instead of the shipped one
    leader_elect: bool = True
    listen: tuple[ListenAddress, ...] = ()
    qps: float | None = 50.0
    burst: int = 100
    timeout: float | None = None  # of a request, in seconds


async def run(
    options: ProcessOptions,
    stop: asyncio.Event,
    *,
    ready: Callable[[], None] = lambda: None,
    show: Callable[[ConsolidationPlan], None] | None = None,
    ended: Callable[[str], None] = lambda summary: None,
) -> None:
    """Consolidate until `stop` is set. `show` is for a dry run: nothing is written then. `ended` hears
    what came of the moves when it is over.

    Raises ConfigError, Invalid or OSError if it cannot start, LeadershipLost when the lease was lost.
    """
    config = kubeconfig.load(options.kubeconfig, context=options.context)
    market = market_of(options.catalogue, options.region)
    registry, health, clock = CollectorRegistry(), HealthChecks(), RealClock()
    async with AsyncExitStack() as stack:
        client = Client(
            HttpTransport(config, clock),
            clock,
            name=config.name,
            qps=options.qps,
            burst=options.burst,
            timeout=options.timeout,
            user_agent=COMPONENT,
            field_manager=COMPONENT,
        )
        await stack.enter_async_context(client)
        # Events have a limit of their own: a flood of them must not hold up decisions.
        events = Client(client.rest.transport, clock, name=config.name, qps=20.0, field_manager=COMPONENT)
        for host, port in options.listen:
            await stack.enter_async_context(ProbeServer(health, host=host, port=port, registry=registry))
        describe_process(registry)

        async def led(leadership: Leadership | None) -> None:
            consolidator = Consolidator(
                client,
                options.consolidator,
                market=market,
                events=events,
                metrics=registry,
                check=leadership.check if leadership is not None else _always,
                show=show,
                off_loop=_in_a_thread,
            )
            health.add("readyz", "watches", consolidator.not_ready)
            ready()
            await consolidator.run(stop)
            if show is None:
                ended(summary(consolidator.ended))

        # Looking writes nothing, so it needs no lease.
        if show is not None or not options.leader_elect:
            await led(None)
        else:
            elector = await elector_of(client, options.consolidator.namespace)
            follow_leadership(registry, "karpool_consolidation", lambda: elector.leading)
            await lead(elector, led, stop)


def summary(ended: Mapping[MovePhase, int]) -> str:
    """What came of moves, in one line; said as well when there were none."""
    made, undone, refused = (
        ended.get(phase, 0) for phase in (MovePhase.DONE, MovePhase.ROLLED_BACK, MovePhase.REJECTED)
    )
    if not made + undone + refused:
        return "nothing was moved"
    return f"{made} moves made, {undone} rolled back, {refused} not begun; see karpool get moves"


async def elector_of(client: Client, namespace: str) -> LeaseElector:
    """The lease is kept where the records are."""
    await executor_of(client, ConsolidatorOptions(namespace=namespace)).prepare()
    return LeaseElector(client, LEASE, namespace=namespace)


async def _in_a_thread(work: Callable[[], Any]) -> Any:
    """Planning a large cluster takes seconds, in which the lease has to be renewed."""
    return await asyncio.to_thread(work)


def _always() -> None:
    return None


# Applying a plan


def executor_of(client: Client, options: ConsolidatorOptions) -> MoveActuator:
    """For those who only write down and read records."""
    smart_pods = SmartPodBackend(
        client, options.smart_pods, ClaimMonitor(client.clock), RequestPurpose.REPLACEMENT
    )
    return MoveActuator(client, smart_pods, options.execution, namespace=options.namespace)


async def apply(
    client: Client,
    moves: Sequence[Move],
    view: ClusterView,
    options: ConsolidatorOptions,
    *,
    market: Market | None = None,
    told: Callable[[MoveRecord], None] = lambda record: None,
) -> list[MoveRecord]:
    """Have moves carried out, by whoever leads, and wait until all of them are over.

    `told` hears of every phase that a move reaches. Cancelled, it leaves moves to the next leader.
    Moves that are under way already are waited for.
    """
    executor, clock = executor_of(client, options), client.clock
    await executor.prepare()
    for move in moves:
        await executor.begin(move, in_flight_view.wanted_of(move, view), clock.now())
    stop = asyncio.Event()

    async def led(leadership: Leadership) -> None:
        only = replace(options, plans=False, once=False)
        await Consolidator(client, only, market=market, check=leadership.check).run(stop)

    elector = await elector_of(client, options.namespace)
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
        found = [record for record in await executor.records() if record.move.id in ids]
        for record in found:
            if reached.get(record.name) is not record.phase:
                reached[record.name] = record.phase
                told(record)
        if all(record.phase.is_over for record in found):
            return found
        await clock.sleep(POLL_SECONDS)
