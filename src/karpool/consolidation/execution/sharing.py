"""Which moves wait for which: those that share what only one of them can use at a time.

Two moves share a disruption budget when it does not let the pods of both go at once; a spread constraint,
because where the pods of one may go depends on where those of the other are; and a node that both send pods
to, since nobody says whose come first. The older goes first. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from karpool.cluster.pods.disruption_store import EVICTABLE
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import Move
from karpool.consolidation.view import ClusterView


def waiting_for(records: Iterable[MoveRecord], view: ClusterView) -> dict[str, str]:
    """By record that has not begun: the one that it has to wait for."""
    active = [
        record
        for record in records
        if not record.phase.is_over and record.phase not in (MovePhase.SETTLING, MovePhase.ROLLING_BACK)
    ]
    active.sort(key=lambda record: (record.phase is MovePhase.WAITING, record.created, record.name))
    holder: dict[str, str] = {}
    evicted: Counter[int] = Counter()
    last: dict[int, str] = {}  # by budget
    waits: dict[str, str] = {}
    for record in active:
        going, keys = evictions(record.move, view), shared_keys(record.move, view)
        if record.phase is MovePhase.WAITING:
            rival = next((holder[key] for key in sorted(keys) if key in holder), "")
            rival = rival or _rival(going, evicted, last, view)
            if rival:
                waits[record.name] = rival
                continue
        holder |= dict.fromkeys(keys, record.name)
        evicted.update(going)
        last |= dict.fromkeys(going, record.name)
    return waits


def _rival(
    going: Mapping[int, int], evicted: Mapping[int, int], last: Mapping[int, str], view: ClusterView
) -> str:
    """Of a move that alone takes more than its budget lets go at once, the server sees to the order."""
    for budget, pods in going.items():
        if budget in last and evicted[budget] + pods > view.budgets[budget].disruptions_allowed:
            return last[budget]
    return ""


def evictions(move: Move, view: ClusterView) -> Counter[int]:
    """Pods that would go, by the number of their disruption budget."""
    pods, found = view.pods, Counter[int]()
    for row in _rows(move, view):
        found.update(int(pods.budget[pod]) for pod in pods.on(row) if pods.flags[pod] & EVICTABLE)
    return Counter({budget: number for budget, number in found.items() if budget >= 0})


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
