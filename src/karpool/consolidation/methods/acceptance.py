"""Replays moves that were found in another state of the search, and accepts them into the plan."""

from collections.abc import Iterable

from karpool.consolidation.state.candidate_move import CandidateMove
from karpool.consolidation.state.move_objections import raises_the_bill
from karpool.consolidation.state.planning_state import PlanningState


def accept_all(state: PlanningState, drafts: Iterable[CandidateMove]) -> list[CandidateMove]:
    accepted = []
    for draft in drafts:
        # Under a contract, the saving of a move depends on the moves before it.
        if not any(raises_the_bill(state, draft)) and put_in_place(state, draft):
            state.accept(draft)
            accepted.append(draft)
    return accepted


def put_in_place(state: PlanningState, draft: CandidateMove) -> bool:
    """Apply the draft to the relocation; return False and change nothing if it does not fit."""
    mark = state.relocation.mark()
    # Try both orders: pods of new nodes first, or pods on existing nodes first.
    for new_first in (True, False) if draft.new and draft.placed else (True,):
        state.remove(draft.rows)
        if new_first:
            state.expect_new(draft.new)
        if all(_put(state, *place) for place in draft.placed):
            return True
        state.relocation.undo(mark)
    return False


def _put(state: PlanningState, shape: int, row: int, pods: int) -> bool:
    relocation = state.relocation
    restricted = relocation.is_restricted(shape)
    alone = restricted or bool(state.view.snapshot.shapes[shape].host_ports)
    return all(
        (not restricted or relocation.allows(shape, row)) and relocation.put(shape, row, some)
        for some in ([1] * pods if alone else [pods])
    )
