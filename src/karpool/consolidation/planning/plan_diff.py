"""Compares two plans: added, removed and changed moves, and why the other plan lacks them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from karpool.consolidation.planning.plan import ConsolidationPlan, Move


class MoveChange(StrEnum):
    ADDED = "added"
    GONE = "gone"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class MoveDifference:
    """`before` and `after` are None if the plan lacks the move. `why`: the reason of the other plan."""

    change: MoveChange
    before: Move | None
    after: Move | None
    why: str = ""

    @property
    def move(self) -> Move:
        move = self.after or self.before
        assert move is not None
        return move


@dataclass(frozen=True, slots=True)
class PlanDiff:
    before: ConsolidationPlan
    after: ConsolidationPlan
    moves: tuple[MoveDifference, ...]

    @property
    def savings_per_hour(self) -> float:
        """How much more the second plan saves."""
        return self.after.savings_per_hour - self.before.savings_per_hour


def plan_diff(before: ConsolidationPlan, after: ConsolidationPlan) -> PlanDiff:
    """Compare the plans. Moves are the same if they remove the same nodes. Removed moves come first."""
    return PlanDiff(before, after, tuple(_differences(before, after)))


def _differences(before: ConsolidationPlan, after: ConsolidationPlan) -> Iterator[MoveDifference]:
    old, new = {move.id: move for move in before.moves}, {move.id: move for move in after.moves}
    for key, move in old.items():
        if key not in new:
            yield MoveDifference(MoveChange.GONE, move, None, _refusal(move, after))
    for key, move in new.items():
        if key not in old:
            yield MoveDifference(MoveChange.ADDED, None, move, _refusal(move, before))
        elif _shown(old[key]) != _shown(move):
            yield MoveDifference(MoveChange.CHANGED, old[key], move)


def _shown(move: Move) -> tuple[object, ...]:
    new_nodes = tuple((node.chosen, round(node.price_per_hour, 6)) for node in move.new_nodes)
    return move.kind, round(move.savings_per_hour, 6), move.disturbed, new_nodes


def _refusal(move: Move, plan: ConsolidationPlan) -> str:
    """Why the plan lacks the move: refused, part of another move, a kept node, or an unknown node."""
    for rejected in plan.rejected:
        if rejected.move.id == move.id:
            return "; ".join(reason.sentence() for reason in rejected.why)
    names = set(move.names)
    for other in plan.moves:
        if names & {*other.names}:
            return f"part of another move: {other.kind} {', '.join(other.names)}"
    for kept in plan.held:
        if kept.node in names:
            return "; ".join(reason.sentence() for reason in kept.why)
    return "the plan does not contain these nodes"
