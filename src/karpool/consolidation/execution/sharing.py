"""Decides which moves wait for which: moves that compete for the same limit run one after the other.

Two moves compete for a disruption budget that does not allow the pods of both at once, for a quota that does
not admit the new pods of both next to the terminating ones, for a spread constraint (the place of one move's
pods depends on the place of the other's), and for a node that receives pods of both, since their order is
unknown. The older move goes first. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from karpool.cluster.pods.disruption_store import EVICTABLE
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import Move
from karpool.consolidation.view import ClusterView


class SharedLimit(NamedTuple):
    """A limit that moves share: pods of a disruption budget, or a resource of a quota."""

    name: str
    allowed: int


def waiting_for(records: Iterable[MoveRecord], view: ClusterView) -> dict[str, str]:
    """Map each record that has not begun to the record that it waits for."""
    active = [
        record
        for record in records
        if not record.phase.is_over and record.phase not in (MovePhase.SETTLING, MovePhase.ROLLING_BACK)
    ]
    active.sort(key=lambda record: (record.phase is MovePhase.WAITING, record.created, record.name))
    holder: dict[str, str] = {}
    used: Counter[SharedLimit] = Counter()
    last: dict[SharedLimit, str] = {}
    waits: dict[str, str] = {}
    for record in active:
        taken, keys = limited_amounts(record.move, view), shared_keys(record.move, view)
        if record.phase is MovePhase.WAITING:
            rival = next((holder[key] for key in sorted(keys) if key in holder), "")
            rival = rival or _rival(taken, used, last)
            if rival:
                waits[record.name] = rival
                continue
        holder |= dict.fromkeys(keys, record.name)
        used.update(taken)
        last |= dict.fromkeys(taken, record.name)
    return waits


def _rival(
    taken: Mapping[SharedLimit, int], used: Mapping[SharedLimit, int], last: Mapping[SharedLimit, str]
) -> str:
    """The last move that uses a limit which this move would exceed. A single move may exceed it: the API
    server enforces the order then.
    """
    for limit, amount in taken.items():
        if limit in last and used[limit] + amount > limit.allowed:
            return last[limit]
    return ""


def limited_amounts(move: Move, view: ClusterView) -> Counter[SharedLimit]:
    """What the move takes of limits: its pods of their disruption budgets, their successors of the quotas.

    Successors are created before the old pods have ended.
    """
    pods, table = view.pods, view.snapshot.shapes
    taken: Counter[SharedLimit] = Counter()
    moving = pods.moves
    for row in _rows(move, view):
        for pod in pods.on(row):
            number = int(pods.budget[pod])
            if number >= 0 and pods.flags[pod] & EVICTABLE:
                budget = view.budgets[number]
                taken[
                    SharedLimit(f"budget {budget.namespace}/{budget.name}", budget.disruptions_allowed)
                ] += 1
            shape = table[int(pods.shapes[pod])]
            for quota in view.quotas.get(shape.namespace, ()) if moving[pod] else ():
                if quota.pods is not None:
                    taken[SharedLimit(f"quota {quota.name} pods", max(quota.pods, 0))] += 1
                for resource, units in shape.requests:
                    if resource in quota.free:
                        free = max(quota.free[resource], 0)
                        taken[SharedLimit(f"quota {quota.name} {resource}", free)] += units
    return taken


def shared_keys(move: Move, view: ClusterView) -> frozenset[str]:
    """The nodes that receive its pods, and the spread constraints of its pods."""
    keys = {f"node {pod.node}" for pod in move.pods if pod.node}
    pods, table = view.pods, view.snapshot.shapes
    moving = pods.moves
    for row in _rows(move, view):
        for number in {int(pods.shapes[pod]) for pod in pods.on(row) if moving[pod]}:
            shape = table[number]
            keys |= {
                f"spread {shape.namespace} {spread.topology_key} {spread.selector}"
                for spread in shape.spreads
                if spread.required
            }
    return frozenset(keys)


def _rows(move: Move, view: ClusterView) -> list[int]:
    return [row for row in map(view.snapshot.find, move.names) if row is not None]
