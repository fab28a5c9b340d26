"""Describes moves of a consolidation plan in sentences and counts."""

from karpool.consolidation.execution import event_text
from karpool.consolidation.planning.plan import Move, ReplacementNode
from karpool.consolidation.policy.scoring import MoveVerdict, PoolScore

NAMES_MAX = 8


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def move_line(move: Move) -> str:
    names = [*move.names[:NAMES_MAX]]
    if left := len(move.names) - len(names):
        names.append(f"and {left} more")
    into = f", and buys {', '.join(map(new_node, move.new_nodes))}" if move.new_nodes else ""
    saved = f"saves ${move.savings_per_hour:.3f} per hour"
    return f"{move.kind} {', '.join(names)}: {saved}, disturbs {counted(move.disturbed, 'pod')}{into}"


def new_node(node: ReplacementNode) -> str:
    chosen = node.chosen
    return f"{chosen.instance_type} in {chosen.zone} ({chosen.capacity_type}) at ${node.price_per_hour:.3f}"


def scores(verdict: MoveVerdict) -> list[str]:
    """Return the verdict of each pool on the move."""
    return [f"nodepool {pool.pool}: {_said(pool)}" for pool in verdict.pools]


def _said(pool: PoolScore) -> str:
    if pool.score is not None:
        return event_text.approved(pool.score, pool.policy.k)
    if pool.policy.is_scored:
        return "it is empty, so no score is needed"
    return f"{pool.policy} asks for no score"
