"""Removes nodes that received pods of the plan: their own pods and the received ones go elsewhere.

Earlier moves are rewritten to the final nodes of those pods, so that each pod moves once. At every point the
destinations of a plan are nodes that stay, or new ones.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from karpool.consolidation.methods.method import PlanDeadline, SearchResult
from karpool.consolidation.policy.reasons import DisruptionReason
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
)
from karpool.consolidation.state.move_objections import objections_to
from karpool.consolidation.state.planning_state import (
    PlanningState,
)

ROUNDS_MAX = 4  # passes over all receivers; a pass without a removal ends the loop

_Homes = dict[int, list[tuple[int, int]]]  # by shape: rows and numbers of pods


class Receivers:
    reason = DisruptionReason.UNDERUTILIZED

    def __init__(self, state: PlanningState) -> None:
        self._state = state

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        """Delete the rows that received pods, if all their pods fit elsewhere."""
        state = self._state
        for _ in range(ROUNDS_MAX):
            went = 0
            sent = _sent(result.drafts)
            for row in rows:
                if deadline.is_over:
                    return
                if state.gone[row] or not sent.get(row):
                    continue
                if state.permission.refusal(self.reason, {state.pool_of[row]: 1}):
                    continue
                went += self._delete(row, sent, result)
            if not went:
                return

    def _delete(self, row: int, sent: dict[int, set[int]], result: SearchResult) -> bool:
        state, relocation = self._state, self._state.relocation
        table = state.view.snapshot.shapes
        arrived: Counter[int] = Counter()
        for index in sent[row]:
            for shape, target, pods in result.drafts[index].placed:
                if target == row:
                    arrived[shape] += pods
        if any(table[shape].host_ports or table[shape].devices is not None for shape in arrived):
            return False
        if any(relocation.is_full(shape) for shape in arrived | Counter(dict(state.demand((row,))))):
            return False
        with state.trial():
            for shape, pods in arrived.items():
                relocation.withdraw(shape, row, pods)
            placed, left = state.relocate((row,), arrived, whole=True)
            draft = CandidateMove((row,), (), (), state.verdict((row,), None))
            if left or objections_to(state, draft, self.reason):
                return False
            homes: _Homes = defaultdict(list)
            for shape, target, pods in placed:
                homes[shape].append((target, pods))
            for index in sorted(sent[row]):
                result.drafts[index] = _rewritten(result.drafts[index], row, homes)
            draft = replace(draft, placed=tuple(_taken(homes, state.demand((row,)))))
            state.accept(draft, arrived_elsewhere=placed)
        moved = sent.pop(row)
        for _, target, _ in placed:
            sent[target] |= moved
        result.drafts.append(draft)
        for _, target, _ in draft.placed:
            sent[target].add(len(result.drafts) - 1)
        result.stuck.pop(row, None)
        result.refused.pop(row, None)
        return True


def _sent(drafts: Sequence[CandidateMove]) -> dict[int, set[int]]:
    """By row: the indices of the moves that send pods to it."""
    senders: dict[int, set[int]] = defaultdict(set)
    for index, draft in enumerate(drafts):
        for _, row, _ in draft.placed:
            senders[row].add(index)
    return senders


def _rewritten(draft: CandidateMove, row: int, homes: _Homes) -> CandidateMove:
    """The move with new places for the pods that it sent to the row."""
    kept = [place for place in draft.placed if place[1] != row]
    moved = [(shape, pods) for shape, target, pods in draft.placed if target == row]
    return replace(draft, placed=(*kept, *_taken(homes, moved)))


def _taken(homes: _Homes, pods: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Take places for the pods out of `homes`."""
    places: list[tuple[int, int, int]] = []
    for shape, number in pods:
        left = number
        while left:
            row, room = homes[shape].pop()
            taken = min(room, left)
            if room > taken:
                homes[shape].append((row, room - taken))
            places.append((shape, row, taken))
            left -= taken
    return places
