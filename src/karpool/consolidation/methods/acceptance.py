"""Moves that were found elsewhere are put in place again, and taken into the plan."""

from collections.abc import Iterable

from karpool.consolidation.state.candidate_move import CandidateMove
from karpool.consolidation.state.move_objections import raises_the_bill
from karpool.consolidation.state.planning_state import PlanningState


def accept_all(state: PlanningState, drafts: Iterable[CandidateMove]) -> list[CandidateMove]:
    accepted = []
    for draft in drafts:
        # With what was contracted, what one saves depends on those before it.
        if not any(raises_the_bill(state, draft)) and put_in_place(state, draft):
            state.accept(draft)
            accepted.append(draft)
    return accepted


def put_in_place(state: PlanningState, draft: CandidateMove) -> bool:
    """Make the relocation hold a draft that was found elsewhere; False, and nothing done, if it cannot."""
    mark = state.relocation.mark()
    # Whichever were counted first when it was found, pods of new nodes or pods on nodes that are there.
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
