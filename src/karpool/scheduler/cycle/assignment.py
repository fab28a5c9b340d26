"""Divides replicas among the chosen clusters: the four strategies, and overflow tiers.

Steady keeps placed replicas and divides only the difference; Fresh divides all of them. Capacity matters to
DynamicWeight and Aggregated only. The result is all or nothing, unless partial placement is enabled; then it
names what is missing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.model.infeasible import Infeasible
from karpool.model.karmada.binding import TargetCluster
from karpool.model.karmada.placement import ReplicaStrategy
from karpool.scheduler.cycle.decision import (
    ClusterCandidate,
    NotScheduled,
    ReplicaDivision,
    ScheduleReason,
    SchedulingMode,
)
from karpool.scheduler.cycle.selection import price_of
from karpool.scheduler.cycle.settings import UNLIMITED_WEIGHT, CostPreference, RoomOrder
from karpool.scheduler.cycle.webster import divide, divide_capped

STAGE = "failed to assign replicas"
Replicas = dict[str, int]
NO_CLUSTERS = Infeasible(ScheduleReason.SCHEDULER_ERROR, f"{STAGE}: no clusters available to schedule")


@dataclass(frozen=True, slots=True)
class AssignmentTask:
    """The input of a division. `previous` is in the order of `spec.clusters`; `weights` are those of the
    matching static rules, by cluster.
    """

    strategy: ReplicaStrategy
    mode: SchedulingMode
    replicas: int
    uid: str
    previous: Sequence[TargetCluster] = ()
    weights: Mapping[str, int] | None = None
    has_overflow: bool = False
    partial: bool = False
    cost: CostPreference = CostPreference.OFF
    scheduling_type: str = ""  # as in the policy, for the message if it is unknown
    division_preference: str = ""
    room_order: RoomOrder = RoomOrder.BY_TOTAL
    unlimited_weight: int = UNLIMITED_WEIGHT


@dataclass(frozen=True, slots=True)
class Assignment:
    """Replicas by cluster, all positive; `missing` only with partial placement."""

    replicas: Replicas
    divisions: tuple[ReplicaDivision, ...]
    missing: int = 0
    failure: NotScheduled | None = None  # why a partial placement is incomplete


def assign(chosen: Sequence[ClusterCandidate], task: AssignmentTask) -> Assignment | NotScheduled:
    if not chosen:
        return NO_CLUSTERS
    if task.strategy is ReplicaStrategy.UNSUPPORTED:
        return _unsupported(task)
    if task.has_overflow and task.strategy is not ReplicaStrategy.DUPLICATED:
        return _by_tiers(chosen, task)
    return _within(chosen, task)


def _unsupported(task: AssignmentTask) -> NotScheduled:
    text = (
        f"unsupported replica scheduling strategy, replicaSchedulingType: {task.scheduling_type}, "
        f"replicaDivisionPreference: {task.division_preference}, "
        "please try another scheduling strategy"
    )
    return Infeasible(ScheduleReason.SCHEDULER_ERROR, f"{STAGE}: {text}")


def _within(chosen: Sequence[ClusterCandidate], task: AssignmentTask) -> Assignment | NotScheduled:
    if task.strategy is ReplicaStrategy.DUPLICATED:
        shares = {candidate.name: task.replicas for candidate in chosen}
        return _assigned(shares, ReplicaDivision(task.strategy, "duplicate", task.replicas))
    if task.strategy is ReplicaStrategy.STATIC:
        weights = _static_weights(chosen, task.weights or {})
        shares = divide(task.replicas, weights, uid=task.uid)
        shown = tuple(weights.items())
        return _assigned(shares, ReplicaDivision(task.strategy, "divide", task.replicas, shown))
    return _by_room(chosen, task)


def _static_weights(chosen: Sequence[ClusterCandidate], weights: Mapping[str, int]) -> dict[str, int]:
    """A cluster without a weight gets nothing, unless no cluster has one."""
    chosen_weights = {
        candidate.name: weights[candidate.name] for candidate in chosen if candidate.name in weights
    }
    return chosen_weights or {candidate.name: 1 for candidate in chosen}


def _assigned(shares: Replicas, division: ReplicaDivision, missing: int = 0) -> Assignment:
    placed = {name: replicas for name, replicas in shares.items() if replicas}
    done = replace(division, result=tuple(sorted(placed.items())), missing=missing)
    return Assignment(placed, (done,), missing)


# DynamicWeight and Aggregated


@dataclass(frozen=True, slots=True)
class _Step:
    """One division by capacity: `room` in candidate order, `kept` unchanged."""

    action: str
    target: int
    room: Sequence[tuple[str, int]]
    kept: Replicas
    wrap: str


def _by_room(chosen: Sequence[ClusterCandidate], task: AssignmentTask) -> Assignment | NotScheduled:
    step = _step(chosen, task)
    if step.action == "keep":
        kept = tuple(step.kept.items())
        return _assigned(dict(step.kept), ReplicaDivision(task.strategy, "keep", 0, kept=kept))
    total = sum(room for _, room in step.room)
    short = max(step.target - total, 0)
    failure = None
    if short:
        text = f"{step.wrap}: Clusters available replicas {total} are not enough to schedule."
        failure = Infeasible(ScheduleReason.UNSCHEDULABLE, f"{STAGE}: {text}", resolvable=True)
        if not task.partial or not (total or step.kept):
            return failure
    placed = _hand_out(chosen, task, replace(step, target=step.target - short))
    return replace(_assigned(*placed, missing=short), failure=failure)


def _step(chosen: Sequence[ClusterCandidate], task: AssignmentTask) -> _Step:
    is_chosen = {candidate.name for candidate in chosen}
    present: Replicas = {}
    for target in task.previous:
        if target.name in is_chosen:
            present.setdefault(target.name, target.replicas)
    assigned = sum(present.values())
    if task.mode is SchedulingMode.FRESH:
        room = [
            (cluster_candidate.name, cluster_candidate.available + present.get(cluster_candidate.name, 0))
            for cluster_candidate in chosen
        ]
        return _Step("fresh", task.replicas, room, {}, "failed to do fresh scale")
    if assigned > task.replicas:
        return _Step("scale down", task.replicas, list(present.items()), {}, "failed to scale down")
    if assigned == task.replicas:
        return _Step("keep", 0, (), present, "")
    room = [(candidate.name, candidate.available) for candidate in chosen]
    action = "scale up" if assigned else "first schedule"
    return _Step(action, task.replicas - assigned, room, present, "failed to scale up")


def _hand_out(
    chosen: Sequence[ClusterCandidate], task: AssignmentTask, step: _Step
) -> tuple[Replicas, ReplicaDivision]:
    to_buy = {candidate.name: candidate.after_scale_up for candidate in chosen if candidate.after_scale_up}
    if task.room_order is RoomOrder.BY_TOTAL or step.action == "scale down" or not to_buy:
        return _shared_out(chosen, task, step)
    there = [(name, room - to_buy.get(name, 0)) for name, room in step.room]
    now = min(step.target, sum(room for _, room in there))
    result, first = _shared_out(chosen, task, replace(step, target=now, room=there))
    rest = step.target - now
    if not rest:
        return result, replace(first, notes=(*first.notes, "on existing nodes"))
    later = replace(step, target=rest, room=tuple(to_buy.items()), kept=result)
    whole, second = _bought(chosen, task, later)
    notes = (
        f"on existing nodes: {now}",
        f"on new nodes: {rest}, by {_weights_shown(second.weights)}",
        *first.notes,
        *second.notes,
    )
    return whole, replace(first, target=step.target, notes=notes)


def _weights_shown(weights: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {weight:g}" for name, weight in weights)


def _bought(
    chosen: Sequence[ClusterCandidate], task: AssignmentTask, step: _Step
) -> tuple[Replicas, ReplicaDivision]:
    """Divide the replicas that need new nodes: by the capacity that could be launched, or cheapest first."""
    rooms = dict(step.room)
    parts = {
        cluster.name: cluster.availability.room for cluster in chosen if cluster.availability is not None
    }
    result, left = dict(step.kept), step.target
    if task.room_order is RoomOrder.BY_PRICE:
        prices_by_cluster = {name: part.price_per_hour for name, part in parts.items() if part is not None}
        prices = {
            name: math.inf if (price := prices_by_cluster.get(name)) is None else price for name in rooms
        }
        ordered = sorted(rooms.items(), key=lambda item: (prices[item[0]], -item[1], item[0]))
        for name, room in ordered:
            result[name] = result.get(name, 0) + min(room, left)
            left -= min(room, left)
        shown = tuple((name, prices[name]) for name, _ in ordered)
        note = "weights are prices of one replica in USD per hour: the cheapest first"
        return result, ReplicaDivision(task.strategy, step.action, step.target, shown, notes=(note,))
    weights = {
        name: min(room, task.unlimited_weight) if (part := parts.get(name)) and part.is_unlimited else room
        for name, room in rooms.items()
    }
    ordered = sorted(weights.items(), key=lambda cluster_room: -cluster_room[1])
    if task.strategy is ReplicaStrategy.AGGREGATED:
        ordered, _ = _aggregated([(name, rooms[name]) for name, _ in ordered], step)
    weights = {name: weights[name] for name, _ in ordered}
    for name, replicas in divide_capped(step.target, weights, rooms, uid=task.uid).items():
        result[name] = result.get(name, 0) + replicas
    return result, ReplicaDivision(task.strategy, step.action, step.target, tuple(weights.items()))


def _shared_out(
    chosen: Sequence[ClusterCandidate], task: AssignmentTask, step: _Step
) -> tuple[Replicas, ReplicaDivision]:
    prices = _prices(chosen, task.cost)
    ordered = sorted(step.room, key=lambda cluster_room: -cluster_room[1])
    if prices and task.cost is CostPreference.TIE_BREAK:
        ordered.sort(key=lambda cluster_room: (-cluster_room[1], prices[cluster_room[0]]))
    elif prices and task.strategy is ReplicaStrategy.AGGREGATED:
        ordered.sort(key=lambda cluster_room: (prices[cluster_room[0]], -cluster_room[1]))
    left_out: Sequence[tuple[str, int]] = ()
    if task.strategy is ReplicaStrategy.AGGREGATED:
        ordered, left_out = _aggregated(ordered, step)
    weights, shares, notes = _divided(ordered, task, step, prices)
    result = dict(step.kept)
    for name, replicas in shares.items():
        result[name] = result.get(name, 0) + replicas
    division = ReplicaDivision(
        task.strategy,
        step.action,
        step.target,
        tuple(weights.items()),
        tuple(name for name, _ in left_out),
        tuple(step.kept.items()),
        notes=notes,
    )
    return result, division


def _aggregated(
    ordered: Sequence[tuple[str, int]], step: _Step
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Clusters in use first, then as many others as the target needs."""
    if step.kept:
        ordered = sorted(ordered, key=lambda cluster_room: not step.kept.get(cluster_room[0]))
    running = 0
    for position, (_, room) in enumerate(ordered):
        running += room
        if running >= step.target:
            return list(ordered[: position + 1]), list(ordered[position + 1 :])
    return list(ordered), []


def _divided(
    ordered: Sequence[tuple[str, int]], task: AssignmentTask, step: _Step, prices: Mapping[str, float]
) -> tuple[dict[str, float], Replicas, tuple[str, ...]]:
    room = dict(ordered)
    if not prices:
        return dict(room), divide(step.target, room, uid=task.uid), ()
    first = sorted(room, key=lambda name: (prices[name], name))
    if task.cost is CostPreference.TIE_BREAK or task.strategy is ReplicaStrategy.AGGREGATED:
        note = f"cheapest first: {', '.join(first)}"
        return dict(room), divide(step.target, room, uid=task.uid, first=first), (note,)
    weights = {name: units * _discount(prices, name) for name, units in room.items()}
    shares = divide_capped(step.target, weights, room, uid=task.uid, first=first)
    return weights, shares, ("weights are room times the lowest price over the cluster's",)


def _prices(chosen: Sequence[ClusterCandidate], cost: CostPreference) -> dict[str, float]:
    """Prices by cluster; empty if prices do not count, or none is known."""
    if cost is CostPreference.OFF or all(cluster_candidate.price is None for cluster_candidate in chosen):
        return {}
    return {candidate.name: price_of(candidate) for candidate in chosen}


def _discount(prices: Mapping[str, float], name: str) -> float:
    """Lowest price over this one; an unknown price counts as the highest known one, a price of zero as 1."""
    priced = [price for price in prices.values() if price != float("inf")]
    lowest, dearest = min(priced), max(priced)
    price = min(prices[name], dearest)
    return 1.0 if price <= lowest else max(lowest, dearest / 1000) / price


# Overflow


def _by_tiers(chosen: Sequence[ClusterCandidate], task: AssignmentTask) -> Assignment | NotScheduled:
    """Each tier takes all it can before the next gets any; so the last tier shrinks first."""
    tiers: dict[int, list[ClusterCandidate]] = {}
    for candidate in chosen:
        tiers.setdefault(candidate.tier, []).append(candidate)
    unplaced = task.replicas
    replicas: Replicas = {}
    divisions: list[ReplicaDivision] = []
    for tier in sorted(tiers):
        if not unplaced:
            break
        members = tiers[tier]
        share = min(unplaced, sum(candidate.total for candidate in members))
        names = {member.name for member in members}
        previous = [cluster for cluster in task.previous if cluster.name in names]
        assigned = _within(members, replace(task, replicas=share, previous=previous, partial=False))
        if isinstance(assigned, Infeasible):
            return assigned
        replicas.update(assigned.replicas)
        divisions += (replace(division, tier=tier) for division in assigned.divisions)
        unplaced -= share
    failure = None
    if unplaced:
        text = "Clusters available replicas are not enough to schedule."
        failure = Infeasible(ScheduleReason.UNSCHEDULABLE, f"{STAGE}: {text}", resolvable=True)
        if not task.partial or not replicas:
            return failure
    return Assignment(replicas, tuple(divisions), unplaced, failure)
