"""Clusters, pools and nodes as bars: requested, promised, free, and what could still be launched.

Pure. Promises belong to clusters, not to nodes, so they appear in the bar of the cluster. What an autoscaler
could add belongs to pools: the potential is null for a pool without limits, and 0 with a reason for a pool
that cannot launch nodes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from karpool.cluster.nodes.state_node import StateNode
from karpool.consolidation.policy.policy import policy_of
from karpool.consolidation.view import ClusterView
from karpool.dashboard.api.views import (
    Amounts,
    ClusterRow,
    FleetOverview,
    NodeList,
    NodeSummary,
    PoolRow,
    ResourceAmount,
)
from karpool.dashboard.pages.move_sentences import counted
from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.karpenter.objects import CAPACITY_TYPE, CompiledPool
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE

SHOWN_ALWAYS = (resources.CPU, resources.MEMORY)
_EXTENDED_MAX = 6
NODES_MAX = 5000
PROBLEMS_MAX = 20
QUIET_SECONDS = 120.0  # a watch that is silent for longer is reported


@dataclass(frozen=True, slots=True)
class PromisedCapacity:
    """The promises of one cluster: replicas and their requests."""

    replicas: int = 0
    amounts: Mapping[str, int] = field(default_factory=dict)


NOTHING = PromisedCapacity()


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """What is known about a watched cluster. `failures`: pools that cannot launch nodes, and why."""

    name: str
    view: ClusterView
    is_control_plane: bool = False
    heard_seconds_ago: float = 0.0
    not_ready: str | None = None
    problems: Sequence[str] = ()
    failures: Mapping[str, str] = field(default_factory=dict)


def fleet(
    clusters: Sequence[ClusterOverview],
    members: Mapping[str, MemberCluster],
    promised: Mapping[str, PromisedCapacity],
    now: float,
    row_of: "MakeRow | None" = None,
) -> FleetOverview:
    """Return the overview: watched clusters, then those known only to Karmada. `row_of` may cache rows."""
    make = row_of or watched
    rows = [
        make(cluster, members.get(cluster.name), promised.get(cluster.name, NOTHING)) for cluster in clusters
    ]
    names = {row.name for row in rows}
    rows += [
        through_karmada(member, promised.get(name, NOTHING))
        for name, member in sorted(members.items())
        if name not in names
    ]
    return FleetOverview(
        at=now,
        clusters=rows,
        nodes=sum(row.nodes for row in rows),
        pods=sum(row.pods for row in rows),
        pending=sum(row.pending for row in rows),
        amounts=summed(row.amounts for row in rows),
        price_per_hour=sum(row.price_per_hour for row in rows),
        list_price_per_hour=sum(row.list_price_per_hour for row in rows),
        unpriced=sum(row.unpriced for row in rows),
        promised_replicas=sum(row.promised_replicas for row in rows),
    )


MakeRow = Callable[[ClusterOverview, MemberCluster | None, PromisedCapacity], ClusterRow]


def watched(facts: ClusterOverview, member: MemberCluster | None, promised: PromisedCapacity) -> ClusterRow:
    view = facts.view
    names = resources_of(view)
    pools = pool_rows(facts, names)
    amounts = summed((pool.amounts for pool in pools), names)
    for name, units in promised.amounts.items():
        if name in amounts:
            amounts[name] = _with(amounts[name], promised=units)
    quiet = QUIET_SECONDS < facts.heard_seconds_ago < inf  # infinite: never heard, which `not_ready` explains
    return ClusterRow(
        name=facts.name,
        watched=True,
        is_control_plane=facts.is_control_plane,
        ready=None if member is None else member.is_ready,
        region=member.region if member is not None else _region(view),
        provider=member.provider if member is not None else "",
        nodes=view.snapshot.n,
        pods=len(view.pods.keys),
        pending=len(view.snapshot.pending) - len(view.buffer_of),
        amounts=amounts,
        price_per_hour=sum(pool.price_per_hour for pool in pools),
        list_price_per_hour=sum(pool.list_price_per_hour for pool in pools),
        unpriced=sum(pool.unpriced for pool in pools),
        promised_replicas=promised.replicas,
        heard_seconds_ago=round(facts.heard_seconds_ago) if quiet else None,
        not_ready=facts.not_ready or "",
        pools=pools,
        why=_why_of(facts, member, promised),
        problems=list(facts.problems[:PROBLEMS_MAX]),
        problems_left_out=max(0, len(facts.problems) - PROBLEMS_MAX),
    )


def through_karmada(member: MemberCluster, promised: PromisedCapacity) -> ClusterRow:
    """Return a row from Karmada's summary: no nodes, no pools, no prices."""
    summary = member.summary
    amounts: Amounts = {}
    for name in SHOWN_ALWAYS if summary is not None else ():
        assert summary is not None
        used = summary.allocated.get(name, 0) + summary.allocating.get(name, 0)
        amounts[name] = ResourceAmount(
            allocatable=summary.allocatable.get(name, 0),
            requested=used,
            promised=promised.amounts.get(name, 0),
        )
    why = ["known only from Karmada's summary; connect to it to see its nodes"]
    if summary is None:
        why.append("it has no summary")
    return ClusterRow(
        name=member.name,
        watched=False,
        ready=member.is_ready,
        region=member.region,
        provider=member.provider,
        nodes=0,
        pods=summary.allocated.get(resources.PODS, 0) if summary is not None else 0,
        pending=summary.allocating.get(resources.PODS, 0) if summary is not None else 0,
        amounts=amounts,
        price_per_hour=0.0,
        promised_replicas=promised.replicas,
        why=[*_why_of_member(member), *why],
        problems=list(member.problems[:PROBLEMS_MAX]),
        problems_left_out=max(0, len(member.problems) - PROBLEMS_MAX),
    )


# Pools


def pool_rows(facts: ClusterOverview, names: Sequence[str]) -> list[PoolRow]:
    view = facts.view
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, machine in enumerate(view.machines):
        rows_of[machine.pool].append(row)
    coming: dict[str, int] = defaultdict(int)
    for machine in view.claims_without_node:
        coming[machine.pool] += 1
    free = {name: view.snapshot.free(name) for name in names}
    whole = {name: view.snapshot.allocatable(name) for name in names}
    pools = []
    for pool in sorted({*rows_of, *coming, *view.pool_objects}, key=lambda name: (not name, name)):
        rows = rows_of.get(pool, [])
        compiled = view.pools.get(pool)
        failure = facts.failures.get(pool, "")
        offered = {name: int(whole[name][rows].sum()) for name in names}
        potential = _potential(view, pool, compiled, offered, failure)
        prices = [view.machines[row].price_per_hour for row in rows]
        listed = [view.machines[row].list_price_per_hour for row in rows]
        amounts = {
            name: ResourceAmount(
                allocatable=units,
                requested=units - int(free[name][rows].sum()),
                potential=potential[name],
            )
            for name, units in offered.items()
        }
        pools.append(
            PoolRow(
                name=pool,
                nodes=len(rows),
                coming=coming[pool],
                amounts=amounts,
                price_per_hour=sum(price for price in prices if price is not None),
                list_price_per_hour=sum(price for price in listed if price is not None),
                unpriced=sum(price is None for price in prices),
                policy=_policy(view, pool),
                weight=compiled.weight if compiled is not None else 0,
                ready=compiled is not None and compiled.is_usable and not failure,
                why=_why_of_pool(view, pool, compiled, failure),
            )
        )
    return pools


def _potential(
    view: ClusterView, pool: str, compiled: CompiledPool | None, offered: Mapping[str, int], failure: str
) -> dict[str, int | None]:
    """Return what a pool may still add; `offered` is the capacity of its nodes."""
    if compiled is None or not compiled.is_usable or failure:
        return dict.fromkeys(offered, 0)
    used = view.usage.get(pool, {})
    if any(limit <= used.get(name, 0) for name, limit in compiled.limits.items()):
        return dict.fromkeys(offered, 0)  # one exceeded limit closes the pool
    left: dict[str, int | None] = {}
    for name, units in offered.items():
        limit = compiled.limits.get(name)
        if limit is not None:
            left[name] = limit - used.get(name, 0)
        else:
            # A pool cannot be relied on for a device that none of its nodes has.
            left[name] = 0 if resources.is_extended(name) and not units else None
    return left


def _policy(view: ClusterView, pool: str) -> str:
    policy = view.pool_objects.get(pool)
    if policy is None:
        return ""
    try:
        return str(policy_of(policy))
    except Invalid as error:
        return f"unreadable: {error}"


def _why_of_pool(view: ClusterView, pool: str, compiled: CompiledPool | None, failure: str) -> list[str]:
    if not pool:
        return ["these nodes belong to no NodePool; Karpool neither adds nor removes them"]
    if pool in view.broken_pools:
        return [f"the NodePool is invalid: {view.broken_pools[pool]}"]
    if compiled is None:
        return ["this NodePool was deleted; its nodes stay until someone removes them"]
    why = []
    if failure:
        why.append(f"does not count at the moment: {failure}")
    if compiled.deleting:
        why.append("the NodePool is being deleted; it launches no nodes")
    elif not compiled.ready and not failure:
        why.append("the NodePool is not Ready; it launches no nodes. See its conditions")
    if compiled.is_static:
        why.append("a static pool: it keeps its number of nodes and launches none for pods")
    used = view.usage.get(pool, {})
    for name, limit in sorted(compiled.limits.items()):
        have = used.get(name, 0)
        shown = f"{resources.show_amount(name, have)} of {resources.show_amount(name, limit)}"
        why.append(
            f"limit reached: {name} {shown}; raise spec.limits to let it grow"
            if have >= limit
            else f"limit: {name} {shown} used"
        )
    if not compiled.limits:
        why.append("no spec.limits: only stock and the cloud account limit it")
    if compiled.taints:
        keys = ", ".join(sorted({taint.key for taint in compiled.taints}))
        why.append(f"only for pods that tolerate {keys}")
    why.append(f"weight {compiled.weight}: heavier pools are tried first")
    return why


# Clusters


def _why_of(facts: ClusterOverview, member: MemberCluster | None, promised: PromisedCapacity) -> list[str]:
    why = []
    if facts.not_ready is not None:
        why.append(f"not everything has been read yet: {facts.not_ready}")
    if QUIET_SECONDS < facts.heard_seconds_ago < inf:
        why.append(
            f"the last message of its API server is {facts.heard_seconds_ago:.0f} s old; figures are stale"
        )
    if facts.view.stop is not None:
        why.append(facts.view.stop.detail)
    if member is not None:
        why += _why_of_member(member)
    if promised.replicas:
        why.append(
            f"{counted(promised.replicas, 'replica')} placed here, not yet on a node: the capacity "
            "is reserved"
        )
    if facts.is_control_plane:
        why.append("a Karmada control plane: it places workloads in its members")
    pending = len(facts.view.snapshot.pending) - len(facts.view.buffer_of)
    if pending:
        why.append(f"pending: {counted(pending, 'pod')}; `karpool explain pod` shows why")
    return why


def _why_of_member(member: MemberCluster) -> list[str]:
    why = []
    if member.is_ready is False:
        why.append("Karmada reports that it is not Ready; no replicas are placed there")
    if member.is_deleting:
        why.append("it is leaving the fleet")
    why += [
        f"taint {taint.key}={taint.value}:{taint.effect} keeps workloads away without toleration"
        for taint in member.taints
    ]
    if member.price is not None:
        why.append(f"price {member.price:g} for one unit of capacity, as its annotation says")
    return why


def _region(view: ClusterView) -> str:
    label = view.snapshot.label("topology.kubernetes.io/region")
    return label.values[0] if len(label.values) else ""


# Nodes


def nodes(name: str, view: ClusterView, now: float, *, pool: str | None = None) -> NodeList:
    names = resources_of(view)
    chosen = [row for row, machine in enumerate(view.machines) if pool is None or machine.pool == pool]
    free = {resource: view.snapshot.free(resource).tolist() for resource in names}
    whole = {resource: view.snapshot.allocatable(resource).tolist() for resource in names}
    items = [
        node_row(
            view.machines[row],
            {resource: whole[resource][row] - free[resource][row] for resource in names},
            {resource: whole[resource][row] for resource in names},
            len(view.snapshot.pods_on(row)),
        )
        for row in chosen[:NODES_MAX]
    ]
    return NodeList(cluster=name, at=now, items=items, left_out=max(0, len(chosen) - NODES_MAX))


def node_row(
    machine: StateNode, requested: dict[str, int], allocatable: dict[str, int], pods: int
) -> NodeSummary:
    node, labels = machine.node, machine.labels
    return NodeSummary(
        name=machine.name,
        pool=machine.pool,
        type=labels.get(INSTANCE_TYPE, ""),
        zone=labels.get(ZONE, ""),
        capacity_type=labels.get(CAPACITY_TYPE, ""),
        requested={name: units for name, units in requested.items() if allocatable[name] or units},
        allocatable={name: units for name, units in allocatable.items() if units},
        pods=pods,
        price_per_hour=machine.price_per_hour,
        list_price_per_hour=machine.list_price_per_hour,
        ready=node is not None and node.is_ready,
        cordoned=node is not None and node.is_unschedulable,
        leaving=machine.is_leaving,
    )


# Sums


def resources_of(view: ClusterView) -> list[str]:
    """Return CPU and memory, and devices of nodes or limits."""
    present = {name for name in view.snapshot.resources if view.snapshot.allocatable(name).any()}
    present |= {name for pool in view.pools.values() for name in pool.limits}
    devices = sorted(name for name in present if resources.is_device(name))
    return [*SHOWN_ALWAYS, *devices[:_EXTENDED_MAX]]


def summed(parts: Iterable[Amounts], names: Sequence[str] = SHOWN_ALWAYS) -> Amounts:
    total = {name: ResourceAmount(allocatable=0, requested=0) for name in names}
    for part in parts:
        for name, more in part.items():
            have = total.get(name, ResourceAmount(allocatable=0, requested=0))
            unlimited = have.potential is None or more.potential is None
            total[name] = ResourceAmount(
                allocatable=have.allocatable + more.allocatable,
                requested=have.requested + more.requested,
                promised=have.promised + more.promised,
                potential=None if unlimited else (have.potential or 0) + (more.potential or 0),
            )
    return total


def _with(amount: ResourceAmount, promised: int) -> ResourceAmount:
    return ResourceAmount(
        allocatable=amount.allocatable,
        requested=amount.requested,
        promised=promised,
        potential=amount.potential,
    )
