"""Which moves wait for which: those that share what only one of them can use at a time.

Two moves share a disruption budget when it does not let the pods of both go at once; a quota when it does not
admit the successors of both next to the pods that end; a spread constraint,
because where the pods of one may go depends on where those of the other are; and a node that both send pods
to, since nobody says whose come first. The older goes first. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from karpool.cluster.pods.disruption_store import EVICTABLE
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import Move
from karpool.consolidation.view import ClusterView


class SharedLimit(NamedTuple):
    """What moves together may take at a time: pods of a disruption budget, a resource of a quota."""

    name: str
    allowed: int


def waiting_for(records: Iterable[MoveRecord], view: ClusterView) -> dict[str, str]:
    """By record that has not begun: the one that it has to wait for."""
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
    """Of a move that alone takes more than may go at once, the server sees to the order."""
    for limit, amount in taken.items():
        if limit in last and used[limit] + amount > limit.allowed:
            return last[limit]
    return ""


def limited_amounts(move: Move, view: ClusterView) -> Counter[SharedLimit]:
    """What its pods take of their disruption budgets when they go, and what their successors, which come
    before they have ended, of the quotas of their namespaces."""
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
    """Nodes that receive its pods, and the spread constraints of its pods."""
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
