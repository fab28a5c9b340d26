"""The consolidator as the manager runs it, and applying a plan: written down and carried out by whoever
leads, ourselves if nobody does.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from karpool.cluster.market.market import Market
from karpool.consolidation.execution import in_flight_view
from karpool.consolidation.execution.actuator import MoveActuator
from karpool.consolidation.execution.contract_exchange import ContractExchange
from karpool.consolidation.execution.controller import (
    COMPONENT,
    Consolidator,
    ConsolidatorSettings,
    consolidator_settings,
)
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import ConsolidationPlan, Move
from karpool.consolidation.view import ClusterView
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.config import kubeconfig
from karpool.kube.leases import Leadership, LeaseElector, lead
from karpool.kube.transport.http import HttpTransport
from karpool.manager.controller import Controller, Environment, LeaseName, ManagerOptions, Place
from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.market_file import contracted_prices, market_of
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend

LEASE = COMPONENT
POLL_SECONDS = 2.0


def _manages(options: ConsolidatorOptions) -> ManagerOptions:
    # What is wrong with these files is said before anything starts.
    market_of(options.catalogue, options.region, options.contract)
    return ManagerOptions(
        clusters=[kubeconfig.load(options.connection.kubeconfig, context=options.connection.context)],
        listen=() if options.once else options.probes.addresses,
        lease=LeaseName(LEASE, options.namespace) if options.leader_elect else None,
        timeout=options.connection.timeout_seconds,
        max_staleness_seconds=options.watch.max_staleness_seconds,
    )


async def _build(
    environment: Environment,
    options: ConsolidatorOptions,
    *,
    market: Market | None = None,
    show: Callable[[ConsolidationPlan], None] | None = None,
    contract_cluster: str = "",
    contract_place: Client | None = None,
) -> Consolidator:
    """`contract_cluster`, `contract_place`: what this one is called, and where clusters tell each other what
    they use, instead of what options say."""
    name = contract_cluster or options.contract_cluster
    if market is None:
        contract = contracted_prices(options.contract, name) if options.contract is not None else None
        market = market_of(options.catalogue, options.region, contract)
    exchange = None
    if name and market.contracted:
        place = contract_place or _contract_place(options, environment.client)
        exchange = ContractExchange(place, name, options.namespace, environment.check)
    return Consolidator(
        environment, consolidator_settings(options), market=market, show=show, exchange=exchange
    )


def _contract_place(options: ConsolidatorOptions, client: Client) -> Client:
    if options.contract_kubeconfig is None:
        return client
    config, clock = kubeconfig.load(options.contract_kubeconfig), client.clock
    return Client(HttpTransport(config, clock), clock, name=config.name, user_agent=COMPONENT)


async def _namespace_of_lease(client: Client, options: ConsolidatorOptions) -> None:
    """The lease is kept where the records are."""
    await executor_of(client, consolidator_settings(options)).prepare()


CONSOLIDATOR = Controller[ConsolidatorOptions](
    name="consolidator",
    place=Place.EACH_CLUSTER,
    component=lambda options: COMPONENT,
    manages=_manages,
    build=_build,
    before_lease=_namespace_of_lease,
    metrics_prefix="karpool_consolidation",
)


def summary(ended: Mapping[MovePhase, int]) -> str:
    """What came of moves, in one line; said as well when there were none."""
    made, undone, refused = (
        ended.get(phase, 0) for phase in (MovePhase.DONE, MovePhase.ROLLED_BACK, MovePhase.REJECTED)
    )
    if not made + undone + refused:
        return "nothing was moved"
    return f"{made} moves made, {undone} rolled back, {refused} not begun; see karpool get moves"


# Applying a plan


def executor_of(client: Client, options: ConsolidatorSettings) -> MoveActuator:
    """For those who only write down and read records."""
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
