"""Answers that need pods to be packed one by one: topology, and sets of components.

The kernel places pods as Karpenter would, so every number found here was reached. The work is bounded: at
most `PODS_MAX` pods beyond those on existing nodes are tried, and an answer never exceeds what was tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from karpool.cluster.market.fleet_bill import LaunchBilling
from karpool.estimator.plugins.interface import CapacityPart
from karpool.estimator.providers.incoming_capacity import ProviderState, on_twins
from karpool.estimator.question import EstimateQuestion
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import NODES, PODS
from karpool.packing.counting.first_fit import NodeFilling
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.fit_reasons import FitReason
from karpool.packing.new_nodes.component_sets import complete_sets
from karpool.packing.new_nodes.node_plan import Usage
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.new_nodes.pack import pack_new_nodes
from karpool.packing.new_nodes.pack_result import PackResult, PendingPod
from karpool.packing.pool_reasons import about_pool
from karpool.packing.tables.room import Room

PODS_MAX = 300
# Existing nodes that hold more replicas than this are not filled one by one first.
EXISTING_MAX = 3000
SHOWN_TYPES = 5
SHOWN_REASONS = 3


@dataclass(frozen=True)
class PackedCapacityInput:
    """The input of the packing kernel."""

    provider: str
    moment: ProviderState
    offerings: Offerings
    daemons: Sequence[PodShape]
    stock_outs: Sequence[StockOut]
    nodes_max: int

    def pack(self, pods: Sequence[PendingPod], on: Room) -> PackResult:
        moment = self.moment
        usage = moment.plan.usage()
        counting = [pool for pool in moment.new.pools if pool.name not in moment.failed]
        return pack_new_nodes(
            on,
            pods,
            [_capped(pool, usage, self.nodes_max) for pool in counting],
            self.offerings,
            daemons=self.daemons,
            usage=usage,
            unavailable=self.stock_outs,
        )


IN_FLIGHT = "/in-flight"  # suffix of a part that consists of coming nodes


def in_flight(provider: str, pool: str) -> str:
    return f"{provider}/{pool}{IN_FLIGHT}"


def packed(
    stage: PackedCapacityInput, question: EstimateQuestion, shape: PodShape, wanted: int | None
) -> list[CapacityPart]:
    """Existing, coming and new nodes together, because topology spans them."""
    moment, existing = stage.moment, question.existing
    most = existing + PODS_MAX
    pods = most if wanted is None else min(wanted, most)
    whole = question.room.without([node.twin for node in moment.coming if node.twin])
    packing = stage.pack(_many(shape, pods), _joined(whole, moment))
    rows = {
        incoming_node.row.name: in_flight(stage.provider, incoming_node.pool)
        for incoming_node in moment.coming
    }
    amounts: dict[str, int] = {}
    for node in packing.placed.values():
        if node in rows:
            amounts[rows[node]] = amounts.get(rows[node], 0) + 1
    parts = [CapacityPart(name, amount) for name, amount in amounts.items()]
    parts += _new_parts(stage, packing, question.snapshot.market.launch_billing())
    placed = len(packing.placed) + sum(len(node.pods) for node in packing.nodes)
    return _cut(parts, min(existing, pods) + sum(part.amount for part in parts) - placed)


def _cut(parts: Sequence[CapacityPart], beyond: int) -> list[CapacityPart]:
    """Reduce the parts: existing nodes were counted alone, and all together may hold fewer."""
    left: list[CapacityPart] = []
    for part in reversed(parts):
        less = min(max(beyond, 0), part.amount)
        left.append(replace(part, amount=part.amount - less))
        beyond -= less
    return left[::-1]


def sets_that_fit(stage: PackedCapacityInput, question: EstimateQuestion, groups: Sequence[Group]) -> int:
    """Complete sets beyond those on existing nodes, using the remaining capacity of these."""
    moment, before = stage.moment, question.existing_sets
    rows = moment.rows.minus(on_twins(moment.coming, question.room, before))
    coming = NodeFilling(rows, topology=False)
    if question.topology or any(node.twin for node in moment.coming):
        return complete_sets(groups, moment.plan, [coming])  # coming nodes count once, here
    rest, begun = before.unfinished(groups)
    return complete_sets(groups, moment.plan, [*rest, coming], begun)


def _many(shape: PodShape, pods: int, prefix: str = "") -> list[PendingPod]:
    return [PendingPod(f"{prefix}{number}", shape, uid=f"{prefix}{number:08}") for number in range(pods)]


def _capped(pool: CompiledPool, usage: Usage, nodes_max: int) -> CompiledPool:
    most = usage.get(pool.name, {}).get(NODES, 0) + nodes_max
    return replace(pool, limits={**pool.limits, NODES: min(pool.limits.get(NODES, most), most)})


def _joined(on: Room, moment: ProviderState) -> Room:
    """The cluster's nodes and the coming ones, with what is left of these."""
    rows = moment.rows
    free = {name: rows.free(name) for name in rows.resources}
    return on.plus(
        replace(
            node.row,
            allocatable={
                **{name: int(column[index]) for name, column in free.items()},
                PODS: int(rows.slots[index]),
            },
        )
        for index, node in enumerate(moment.coming)
    )


def _new_parts(stage: PackedCapacityInput, packing: PackResult, billing: LaunchBilling) -> list[CapacityPart]:
    refusals: dict[str, list[Infeasible[FitReason]]] = {}
    for refusal in packing.left[0].reasons if packing.left else ():
        refusals.setdefault(refusal.about, []).append(refusal)
    parts: list[CapacityPart] = []
    for pool in stage.moment.new.pools:
        if pool.name not in stage.moment.failed:
            only = PackResult(tuple(node for node in packing.nodes if node.pool == pool.name))
            types = dict.fromkeys(node.chosen.instance_type for node in only.nodes)
            cost = billing.cost(pool.name, ((1, node.chosen) for node in only.nodes))
            why = refusals.get(about_pool(pool.name), [])
            parts.append(
                CapacityPart(
                    f"{stage.provider}/{pool.name}",
                    sum(len(node.pods) for node in only.nodes),
                    nodes=len(only.nodes),
                    instance_types=tuple(types)[:SHOWN_TYPES],
                    price_per_hour=cost.per_hour,
                    list_price_per_hour=cost.list_per_hour,
                    reasons=tuple(infeasible.detail for infeasible in why[:SHOWN_REASONS]),
                    may_pass=any(infeasible.resolvable for infeasible in why),
                    is_unlimited=not pool.limits,
                )
            )
    return parts
