"""The consolidator as the manager runs it. Its lease is in the namespace of the records."""

from collections.abc import Callable

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.contract_exchange import ContractExchange
from karpool.consolidation.execution.controller import (
    COMPONENT,
    Consolidator,
    consolidator_settings,
)
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.consolidation.execution.plan_application import LEASE, executor_of
from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.manager.controller import Controller, Environment, LeaseName, ManagerOptions, Place
from karpool.model.contracts.contract import MeetingPlace
from karpool.provisioning.contract_uses import connected
from karpool.provisioning.market_file import contracted_prices, market_of


def _manages(options: ConsolidatorOptions) -> ManagerOptions:
    # Errors in these files are reported before anything starts.
    name = options.contract_cluster or None
    market_of(options.catalogue, options.region, options.contract, contract_cluster=name)
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
    """`contract_cluster` and `contract_place` override the options: this cluster's name in the contract, and
    the client of the cluster where all clusters share their use.
    """
    name = contract_cluster or options.contract_cluster
    if market is None:
        contract = None
        if options.contract is not None:
            contract = contracted_prices(options.contract, name or None, hears=False)
        market = market_of(options.catalogue, options.region, contract)
    exchange = None
    if name and market.contracted:
        shared_in = market.contracted.contract.shared_in if contract_place is None else None
        namespace = options.namespace if shared_in is None else shared_in.namespace
        place = contract_place or _contract_place(options, environment.client, shared_in)
        exchange = ContractExchange(place, name, namespace, environment.check)
    return Consolidator(
        environment, consolidator_settings(options), market=market, show=show, exchange=exchange
    )


def _contract_place(options: ConsolidatorOptions, client: Client, shared_in: MeetingPlace | None) -> Client:
    """The client of the exchange: by the option, else by the contract, else of this cluster."""
    if options.contract_kubeconfig is not None:
        return connected(MeetingPlace("", str(options.contract_kubeconfig)), client.clock, COMPONENT)
    if shared_in is not None and (shared_in.kubeconfig or shared_in.context):
        return connected(shared_in, client.clock, COMPONENT)
    return client


async def _namespace_of_lease(client: Client, options: ConsolidatorOptions) -> None:
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
