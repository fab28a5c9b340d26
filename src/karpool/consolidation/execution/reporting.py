"""Reports decisions about nodes as Events with their numbers, without repeating them.

A move of one node is reported on its Node and its NodeClaim, a move of several nodes once on each NodePool
involved. The same message about an object is repeated after 15 minutes at the earliest. Two rejections that
differ only in their numbers count as the same message.
"""

import re
from collections.abc import Iterator

from karpool.cluster.nodes.node_facts import ClaimFacts, NodeFacts
from karpool.consolidation.execution import event_text
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import ConsolidationPlan, Move, RejectedMove
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.view import ClusterView
from karpool.kube.clock import Clock
from karpool.kube.event_recorder import EventRecorder, EventType, ObjectReference, ref
from karpool.kube.expiring import ExpiringMap
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODEPOOLS, NODES, ApiResource

AGAIN_SECONDS = 900.0
_REMEMBERED = 10_000
BLOCKED = "DisruptionBlocked"
TERMINATING = "DisruptionTerminating"
ROLLED_BACK = "ConsolidationRolledBack"
DONE = "ConsolidationDone"
_REFUSALS = frozenset((event_text.REJECTED, ROLLED_BACK, BLOCKED))
_NUMBER = re.compile(r"(?<![\w.-])\$?[0-9]+(?:\.[0-9]+)?%?(?![\w-])")  # numbers that are not part of a name
_UNREADABLE = frozenset((ConsolidationReason.BUDGET_UNREADABLE, ConsolidationReason.NODEPOOL_UNREADABLE))


class MoveReporter:
    def __init__(self, recorder: EventRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._said = ExpiringMap[tuple[ObjectReference, str, str], bool](clock, AGAIN_SECONDS, _REMEMBERED)

    def plan(self, plan: ConsolidationPlan, view: ClusterView) -> None:
        for rejected in plan.rejected:
            self._rejected(rejected, view)
        for pool, why in _blocked(plan).items():
            pool_object = view.pool_objects.get(pool)
            if pool_object is not None:
                self._say(ref(NODEPOOLS, pool_object), "Warning", BLOCKED, why.detail)

    def approved(self, move: Move, view: ClusterView) -> None:
        if move.new_nodes:
            text = event_text.candidate(_command(move), move.savings_per_hour)
            for about in _nodes_of(move, view):
                self._say(about, "Normal", event_text.CANDIDATE, text)
        for about, text in _about(move, view):
            self._say(about, "Normal", event_text.APPROVED, text)

    def _rejected(self, rejected: RejectedMove, view: ClusterView) -> None:
        why = rejected.why[0]
        for about, numbers in _about(rejected.move, view):
            text = (
                numbers
                if why.reason is ConsolidationReason.SCORE
                else f"{_refusal(rejected.move, why)}: {why.detail}"
            )
            self._say(about, "Normal", event_text.REJECTED, text)

    def moved(self, record: MoveRecord, view: ClusterView | None) -> None:
        """Report a record that changed its phase."""
        if view is None:
            return
        move, why = record.move, Infeasible(ConsolidationReason(record.reason), record.message)
        match record.phase:
            case MovePhase.REJECTED:
                for about in _subjects(move, view):
                    self._say(about, "Normal", event_text.REJECTED, f"{_refusal(move, why)}: {why.detail}")
            case MovePhase.ROLLED_BACK:
                for about in _subjects(move, view):
                    self._say(about, "Warning", ROLLED_BACK, f"{_refusal(move, why)}: {why.detail}")
            case MovePhase.DELETING:
                for about in _nodes_of(move, view):
                    self._say(about, "Normal", TERMINATING, f"Disrupting Node: {move.reason}")
            case MovePhase.DONE:
                for about in _pools_of(move, view):
                    self._say(about, "Normal", DONE, _outcome(record))
            case _:
                pass

    def _say(self, about: ObjectReference, type_: EventType, reason: str, message: str) -> None:
        key = about, reason, _NUMBER.sub("#", message) if reason in _REFUSALS else message
        if key in self._said:
            return
        self._said.put(key, True)
        self._recorder.record(about, type_, reason, message)


def _blocked(plan: ConsolidationPlan) -> dict[str, Infeasible[ConsolidationReason]]:
    """Pools that are closed by something unreadable; only an event makes that visible."""
    blocked = {pool.name: why for pool in plan.pools for why in pool.why if why.reason in _UNREADABLE}
    for rejected in plan.rejected:
        for why in rejected.why:
            if why.reason in _UNREADABLE:
                blocked.setdefault(why.about.removeprefix("nodepool "), why)
    return blocked


def _command(move: Move) -> str:
    return event_text.command(_decision(move), move.names, len(move.new_nodes))


def _decision(move: Move) -> str:
    return "replace" if move.new_nodes else "delete"


def _refusal(move: Move, why: Infeasible[ConsolidationReason]) -> str:
    return event_text.rejected(_command(move), why.reason.failure, move.savings_per_hour)


def _outcome(record: MoveRecord) -> str:
    realised = "not known" if record.realised is None else f"${record.realised:.4f}"
    expected = f"${record.move.savings_per_hour:.4f} were expected"
    text = f"{_command(record.move)}: saves {realised} per hour, {expected}"
    if record.extra_nodes:
        text += f"; {len(record.extra_nodes)} more nodes were launched for its pods"
    return text


def _about(move: Move, view: ClusterView) -> Iterator[tuple[ObjectReference, str]]:
    """The objects of the move, and the numbers of the pool that decides about them."""
    by_pool = {verdict.pool: verdict for verdict in move.verdict.pools}
    subjects = _subjects(move, view)
    pools = [subject.name for subject in subjects] if len(move.nodes) > 1 else [move.nodes[0].pool] * 2
    for about, pool in zip(subjects, pools, strict=False):
        verdict = by_pool.get(pool)
        if verdict is not None and verdict.score is not None:
            yield about, event_text.approved(verdict.score, verdict.policy.k)
        else:
            yield about, f"{_command(move)} (savings: ${move.savings_per_hour:.2f}, pods: {move.disturbed})"


def _subjects(move: Move, view: ClusterView) -> list[ObjectReference]:
    return list(_nodes_of(move, view)) if len(move.nodes) == 1 else list(_pools_of(move, view))


def _nodes_of(move: Move, view: ClusterView) -> Iterator[ObjectReference]:
    for source in move.nodes:
        row = view.snapshot.find(source.name)
        if row is None:
            continue
        machine = view.machines[row]
        if machine.node is not None:
            yield _reference(NODES, machine.node)
        if machine.claim is not None:
            yield _reference(NODECLAIMS, machine.claim)


def _reference(resource: ApiResource, machine: NodeFacts | ClaimFacts) -> ObjectReference:
    return ObjectReference(resource.api_version, resource.kind, "", machine.name, machine.uid)


def _pools_of(move: Move, view: ClusterView) -> Iterator[ObjectReference]:
    for name in move.pools:
        pool_object = view.pool_objects.get(name)
        if pool_object is not None:
            yield ref(NODEPOOLS, pool_object)
