"""ClusterView: everything that a plan is made from, at one moment.

A view never changes. Its rows are those of its snapshot. `PodDisruptionTable` is sorted by row, so that the
pods of a node are a slice. `view_of` builds a view from a snapshot of the cluster.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from karpool.cluster.aspects import Aspect
from karpool.cluster.market.fleet_bill import FleetBill
from karpool.cluster.nodes.state_node import StateNode
from karpool.cluster.pods.disruption_store import PodDisruptionTable
from karpool.cluster.snapshot import Snapshot
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.scoring import NODE_COST, Floats
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import (
    CompiledPool,
    NodePool,
)
from karpool.model.kubernetes.pod_disruption import CompiledPdb
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.kubernetes.resource_quota import QuotaHeadroom
from karpool.model.resources import Resources
from karpool.packing.dra.pod_claims import HeldClaims
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.tables.room import Room

# The aspects of a cluster that plans depend on.
ASPECTS = (
    Aspect.NAMESPACES
    | Aspect.VOLUMES
    | Aspect.NODECLAIMS
    | Aspect.POOLS
    | Aspect.DAEMONS
    | Aspect.STOCK
    | Aspect.DISRUPTION
    | Aspect.DEVICES
    | Aspect.DRA
    | Aspect.RECORDS
    | Aspect.OVERLAYS
    | Aspect.BUFFERS
    | Aspect.QUOTAS
)


@dataclass(frozen=True, slots=True)
class NodeRemoval:
    """A node that was removed, for disruption rates."""

    pool: str
    node: str
    at: float


@dataclass(frozen=True)
class ClusterView:
    snapshot: Room
    pods: PodDisruptionTable
    machines: Sequence[StateNode]  # by row
    claims_without_node: Sequence[StateNode]
    pools: Mapping[str, CompiledPool]
    pool_objects: Mapping[str, NodePool]
    broken_pools: Mapping[str, str]  # pools that cannot be read, and why
    budgets: Sequence[CompiledPdb]
    offerings: Offerings
    daemons: Sequence[PodShape] = ()
    usage: Mapping[str, Resources] = field(default_factory=dict)  # of each pool, against its limits
    unavailable: Collection[StockOut] = ()
    pending: Sequence[str] = ()  # keys of pods that Karpenter would launch nodes for
    quotas: Mapping[str, Sequence[QuotaHeadroom]] = field(default_factory=dict)  # by namespace
    buffer_of: Mapping[str, str] = field(default_factory=dict)  # placeholder pods of capacity buffers, by key
    unclear_buffers: Mapping[str, str] = field(default_factory=dict)  # by pool: what is wrong with the buffer
    first_unreadable: Mapping[str, str] = field(default_factory=dict)  # by node, a pod that cannot be read
    held_claims: HeldClaims = field(default_factory=HeldClaims)
    nominated: Collection[str] = ()  # nodes that are nominated for pending pods
    in_flight: Collection[str] = ()  # nodes of active moves
    # The planned node of each pod on a leaving node; empty for a node that is still to come.
    promised: Mapping[str, str] = field(default_factory=dict)
    stop: Infeasible[ConsolidationReason] | None = None
    recent: Sequence[NodeRemoval] = ()
    problems: Sequence[str] = ()
    bill: FleetBill | None = None  # under a contract

    @cached_property
    def node_costs(self) -> Floats:
        """By row: the disruption cost of removing the node."""
        pods = self.pods
        moving = pods.moves
        weights = np.where(moving, pods.costs, 0.0)
        costs: Floats = np.bincount(pods.rows, weights=weights, minlength=self.snapshot.n).astype(np.float64)
        return NODE_COST + costs

    @cached_property
    def prices(self) -> Floats:
        """By row; NaN if unknown."""
        prices = (machine.price_per_hour for machine in self.machines)
        return np.array([np.nan if price is None else price for price in prices], dtype=np.float64)


def _unclear_buffers(snapshot: Snapshot) -> dict[str, str]:
    """By pool, a buffer whose capacity cannot be determined: in pools that run pods of its namespace, or in
    all pools if none does.
    """
    buffers: dict[str, str] = {}
    pods = snapshot.pods if snapshot.buffers.unclear else None
    for buffer in snapshot.buffers.unclear if pods is not None else ():
        assert pods is not None
        rows = {
            int(row)
            for key, row in zip(pods.keys, pods.rows, strict=True)
            if key.startswith(f"{buffer.namespace}/")
        }
        pools = {snapshot.nodes[row].pool for row in rows} or set(snapshot.pool_objects)
        for pool in pools - {""}:
            buffers.setdefault(pool, buffer.problem)
    return buffers


def view_of(
    snapshot: Snapshot,
    now: float,
    *,
    unavailable: Collection[StockOut] = (),
    in_flight: Collection[str] = (),
    recent: Sequence[NodeRemoval] = (),
    stop: Infeasible[ConsolidationReason] | None = None,
    problems: Iterable[str] = (),
) -> ClusterView:
    """The view of the cluster without active moves; `execution.in_flight_view` adds them."""
    if stop is None and not snapshot.complete:
        message = "the nodes of some pods are unknown; see the problems"
        stop = Infeasible(ConsolidationReason.POD_UNREADABLE, message)
    return ClusterView(
        snapshot=snapshot.room,
        pods=snapshot.pods,
        machines=snapshot.nodes,
        claims_without_node=snapshot.claims_without_node,
        pools=snapshot.deliverable_pools(now),
        pool_objects=snapshot.pool_objects,
        broken_pools=snapshot.broken_pools,
        budgets=snapshot.budgets,
        offerings=snapshot.offerings,
        daemons=tuple(snapshot.daemons.values()),
        usage={name: snapshot.usage.get(name, {}) for name, pool in snapshot.pools.items() if pool.limits},
        unavailable=tuple(dict.fromkeys((*unavailable, *snapshot.stock_outs(now)))),
        pending=snapshot.pending,
        quotas=snapshot.facts.quotas,
        buffer_of=snapshot.buffers.buffer_of,
        unclear_buffers=_unclear_buffers(snapshot),
        first_unreadable=snapshot.facts.first_unreadable,
        held_claims=snapshot.facts.held_claims,
        nominated=snapshot.nominated,
        in_flight=frozenset(in_flight),
        stop=stop,
        recent=tuple(recent),
        problems=(*problems, *snapshot.problems),
        bill=snapshot.facts.market.bill(),
    )
