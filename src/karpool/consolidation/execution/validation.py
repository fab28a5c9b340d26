"""Looking at moves again: before they are made, before a saved plan is applied, and for one's own curiosity.

Everything that was decided is decided again on what the cluster is now: the nodes and
their claims, the pods on them, every rule of eligibility, budgets, room, and the score.

A saved plan is stale when it is too old, or when one of its moves would not be decided again today.
Whatever it was made with, budgets count now.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karpool.consolidation.fingerprint import fingerprint
from karpool.consolidation.methods.deletion import delete, no_room
from karpool.consolidation.methods.replacement import Replacement, pods_shown
from karpool.consolidation.planning.plan import (
    ConsolidationPlan,
    Move,
    MoveKind,
    ReplacementNode,
)
from karpool.consolidation.planning.planner import Planner
from karpool.consolidation.policy.candidates import find_candidates
from karpool.consolidation.policy.policy import ConsolidationPolicy, PolicyName
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.settings import DEFAULTS, PlanSettings
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
    Pods,
    UnplacedShapes,
)
from karpool.consolidation.state.move_objections import (
    LEAST_SAVING,
    objections_to,
)
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.consolidation.view import ClusterView
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.node import ZONE
from karpool.model.requirements import ValueSet
from karpool.packing.fit_reasons import explain_nodes, show_count
from karpool.packing.relocation.single_node import FittingTypes
from karpool.packing.tables.columns import Bools
from karpool.packing.tables.room import Room

_UNSCORED = ConsolidationPolicy(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED)
NONE_ARRIVED: Mapping[str, Sequence[str]] = {}
_AGREED_BEFORE_PAYING = frozenset((ConsolidationReason.SCORE, ConsolidationReason.SMALL_SAVING))
_TIMEOUT_SECONDS_PER_NODE = 0.08
_REASONS_SHOWN = 3  # of each pod: nobody reads a long list
_TIMEOUT_SECONDS = (600.0, 3600.0)


def same_outcome(
    planned_types: Collection[str] | None, new_nodes: int, types: Collection[str], *, unplaced: bool
) -> bool:
    """Whether a second simulation confirms a command. None: it was a delete.

    A replacement is confirmed when as many nodes are needed and what was planned is still possible.
    """
    if unplaced or new_nodes != (planned_types is not None):
        return False
    return planned_types is None or set(planned_types) <= set(types)


def command_timeout(queued: int) -> float:
    """Seconds that a command may take while so many nodes wait to go."""
    least, most = _TIMEOUT_SECONDS
    return min(max(_TIMEOUT_SECONDS_PER_NODE * queued, least), most)


def is_stale(plan: ConsolidationPlan, view: ClusterView) -> bool:
    """Whether anything that decided the plan has changed since."""
    return plan.fingerprint != fingerprint(view)


def validate_all(
    chosen: Iterable[Move],
    view: ClusterView,
    settings: PlanSettings = DEFAULTS,
    now: float = 0.0,
    *,
    arrived: Mapping[str, Sequence[str]] = NONE_ARRIVED,
    targets: Collection[str] = (),
    begun: Collection[str] = (),
) -> dict[str, tuple[Infeasible[ConsolidationReason], ...]]:
    """Moves in order, each on top of those before it that still hold; by their ids.

    `arrived` are the new nodes of moves (by id) in the order of the plan, once they are there. `targets`
    are nodes that may receive pods however young they are. `begun` are moves (by id) whose nodes take no
    pods any more.
    """
    judged = find_candidates(view, settings, now)
    if targets:
        open_rows = judged.targets.copy()
        for row in map(view.snapshot.find, targets):
            if row is not None:
                open_rows[row] = True
        judged = replace(judged, targets=open_rows)
    planner = Planner(view, settings, now, judged=judged)
    received = planner.world.receives.copy()
    return {
        move.id: _Again(
            planner, move, arrived.get(move.id, ()), received, begun=move.id in begun
        ).objections()
        for move in chosen
    }


class _Again:
    """One move, once more."""

    def __init__(
        self, planner: Planner, move: Move, arrived: Sequence[str], received: Bools, *, begun: bool
    ) -> None:
        """`received`: rows that were sent pods before any move was."""
        self._planner, self._move, self._arrived, self._received = planner, move, arrived, received
        self._begun = begun or bool(arrived)
        self._world: PlanningState = planner.world
        self._view = planner.view

    def objections(self) -> tuple[Infeasible[ConsolidationReason], ...]:
        rows: list[int] = []
        if not self._move.nodes:
            return (Infeasible(ConsolidationReason.CHANGED, "a move without nodes takes nothing away"),)
        for node in self._move.nodes:
            row = self._view.snapshot.find(node.name)
            if row is None:
                return (
                    Infeasible(
                        ConsolidationReason.GONE,
                        f"node {node.name} no longer exists",
                        f"node {node.name}",
                    ),
                )
            rows.append(row)
        changed = [
            *self._identity(rows),
            *(self._world.buffer_reason(row) for row in rows if row in self._world.buffered),
            *self._ineligible(rows),
            *self._new_pods(rows),
            *self._needed(rows),
        ]
        return tuple(changed) or self._simulate(rows)

    def _identity(self, rows: Sequence[int]) -> Iterable[Infeasible[ConsolidationReason]]:
        for row, node in zip(rows, self._move.nodes, strict=True):
            claim = self._view.machines[row].claim
            if claim is None or claim.uid != node.claim_uid:
                yield Infeasible(
                    ConsolidationReason.REPLACED,
                    f"node {node.name} has another NodeClaim than planned",
                    f"node {node.name}",
                )

    def _ineligible(self, rows: Sequence[int]) -> Iterable[Infeasible[ConsolidationReason]]:
        """By every rule, and for the reason that was planned: an empty node that filled up is none. One
        that emptied is left to those that take empty nodes, unless the move has begun: it goes all the same,
        and going back would only take it a second time."""
        judged = self._planner.judged
        planned = judged.empty if self._move.kind is MoveKind.EMPTY else judged.candidates
        if self._begun:
            planned = np.concatenate((planned, judged.empty))
        for row in rows:
            if row in judged.held:
                yield from judged.held[row]
            elif row not in planned:
                name = self._view.machines[row].name
                yield Infeasible(
                    ConsolidationReason.NOT_EMPTY if len(planned) else ConsolidationReason.CHANGED,
                    f"node {name} changed since the plan was made",
                    f"node {name}",
                )

    def _new_pods(self, rows: Sequence[int]) -> Iterable[Infeasible[ConsolidationReason]]:
        planned = {pod.pod for pod in self._move.pods}
        pods = self._view.pods
        moving = pods.moves
        for row in rows:
            for pod in pods.on(row):
                if moving[pod] and pods.keys[pod] not in planned:
                    key = pods.keys[pod]
                    yield Infeasible(
                        ConsolidationReason.NEW_POD, f"pod {key} was added to the node", f"pod {key}"
                    )

    def _needed(self, rows: Sequence[int]) -> Iterable[Infeasible[ConsolidationReason]]:
        """Nodes that a move before this one has to send pods to, for want of the place it was to have."""
        for row in rows if self._move.kind is not MoveKind.EMPTY else ():
            if self._world.receives[row] and not self._received[row]:
                name = self._view.machines[row].name
                message = f"pods of an earlier move fit only on {name}"
                yield Infeasible(ConsolidationReason.NO_ROOM, message, f"node {name}")

    def _simulate(self, rows: list[int]) -> tuple[Infeasible[ConsolidationReason], ...]:
        world, move = self._world, self._move
        mark = world.relocation.mark()
        world.remove(rows)
        new = {} if self._arrived else self._pods_of_new_nodes(rows)
        bought: list[tuple[FittingTypes, Pods]] = []
        for number, pods in new.items():
            fitting = self._still_sold(move.new_nodes[number], pods)
            if isinstance(fitting, Infeasible):
                world.relocation.undo(mark)
                return (fitting,)
            bought.append((fitting, pods))
        removed = world.relocation.mark()
        world.expect_new(bought)
        placed, left = self._place(rows, new)
        if left and world.relocation.expects_new:  # the others may have been placed before them
            world.relocation.undo(removed)
            placed, left = self._place(rows, new)
        if left and move.kind is not MoveKind.EMPTY:
            world.relocation.undo(mark)
            return (no_room(world, left).why,)
        price = sum(node.price_per_hour for node in move.new_nodes) if move.new_nodes else None
        draft = CandidateMove(tuple(rows), tuple(placed), tuple(bought), world.verdict(rows, price))
        return self._decide(draft, mark)

    def _place(self, rows: list[int], new: Mapping[int, Pods]) -> tuple[list[tuple[int, int, int]], Pods]:
        """Pods that need no new node: where they were meant to go, else wherever there is room."""
        world, relocation = self._world, self._world.relocation
        left = dict(world.demand(rows))
        for pods in new.values():
            for shape, number in pods.items():
                left[shape] -= number
        placed: list[tuple[int, int, int]] = []
        homes, waiting = list(self._planned(rows)), -1
        while len(homes) != waiting:  # a pod may have to wait for another to come, as spread demands
            waiting, still = len(homes), list[tuple[int, int]]()
            for shape, row in homes:
                if left.get(shape, 0) <= 0:
                    continue
                if relocation.allows(shape, row) and relocation.put(shape, row, 1):
                    left[shape] -= 1
                    placed.append((shape, row, 1))
                else:
                    still.append((shape, row))
            homes = still
        progress = True
        while progress:  # a pod may have waited for another to come
            progress = False
            for shape in [unplaced for unplaced, number in left.items() if number > 0]:
                for row, number in relocation.place(shape, left[shape]):
                    placed.append((shape, row, number))
                    left[shape] -= number
                    progress = True
        return placed, {shape: number for shape, number in left.items() if number > 0}

    def _planned(self, rows: Iterable[int]) -> Iterable[tuple[int, int]]:
        """Shape and row of every pod that was to go to a node that is still there."""
        find = self._view.snapshot.find
        homes = promised_by(self._move, self._arrived)
        home = {pod: find(name) for pod, name in homes.items() if name}
        pods = self._view.pods
        for row in rows:
            for pod in pods.on(row):
                target = home.get(pods.keys[pod])
                if target is not None:
                    yield int(pods.shapes[pod]), target

    def _decide(self, draft: CandidateMove, mark: int) -> tuple[Infeasible[ConsolidationReason], ...]:
        world, move = self._world, self._move
        if move.kind is MoveKind.EMPTY:
            nodes = Counter(world.pool_of[row] for row in draft.rows)
            why = world.permission.refusal(DisruptionReason.EMPTY, nodes)
        else:
            why = objections_to(world, draft, move.reason)
            if self._arrived:
                why = _after_paying(draft, why)
        if why:
            world.relocation.undo(mark)
        else:
            world.accept(draft)
        return why

    def _pods_of_new_nodes(self, rows: Iterable[int]) -> dict[int, Pods]:
        """By new node, the shapes of its pods that are still there."""
        home = {pod.pod: pod.new_node for pod in self._move.pods if pod.new_node is not None}
        pods, shapes_of = (
            self._view.pods,
            {number: Counter[int]() for number in range(len(self._move.new_nodes))},
        )
        for row in rows:
            for pod in pods.on(row):
                number = home.get(pods.keys[pod])
                if number is not None:
                    shapes_of[number][int(pods.shapes[pod])] += 1
        return {number: dict(shapes) for number, shapes in shapes_of.items() if shapes}

    def _still_sold(
        self, node: ReplacementNode, pods: Pods
    ) -> FittingTypes | Infeasible[ConsolidationReason]:
        """Whether the types that were planned can still be had and still hold the pods; only they count
        against limits."""
        planned = {choice.instance_type for choice in node.options}
        zones = frozenset(choice.zone for choice in node.options if choice.zone)
        counted = any(self._world.relocation.counts(shape) for shape in pods)
        within = {ZONE: ValueSet(zones)} if zones and counted else None
        for fitting in self._world.one_node.fitting(pods, within=within):
            types = np.array([name in planned for name in fitting.state.offer.names], dtype=np.bool_)
            if fitting.pool == node.pool and (sold := fitting.only(types & fitting.types)) is not None:
                return sold
        message = f"{node.chosen.instance_type} of nodepool {node.pool} is no longer available for these pods"
        return Infeasible(ConsolidationReason.NO_TYPE, message, f"nodepool {node.pool}")


def _after_paying(
    draft: CandidateMove, why: Iterable[Infeasible[ConsolidationReason]]
) -> tuple[Infeasible[ConsolidationReason], ...]:
    """The score was agreed to before the new nodes were bought. They raise what the pool costs, so that the
    same move scores less now; as long as going on saves anything, going back only wastes what was paid."""
    rest = tuple(objection for objection in why if objection.reason not in _AGREED_BEFORE_PAYING)
    if draft.savings > LEAST_SAVING:
        return rest
    message = f"the new nodes save ${draft.savings:.4f} per hour, so they are not cheaper than the old ones"
    return (Infeasible(ConsolidationReason.NOT_CHEAPER, message), *rest)


def promised_by(move: Move, arrived: Sequence[str]) -> dict[str, str]:
    """By pod, the node that it is meant for; empty: one that is still to come."""
    homes = {pod.pod: pod.node for pod in move.pods if pod.node}
    for pod in move.pods:
        if pod.new_node is not None:
            homes[pod.pod] = arrived[pod.new_node] if 0 <= pod.new_node < len(arrived) else ""
    return homes


def what_if(
    view: ClusterView, names: Sequence[str], settings: PlanSettings = DEFAULTS, now: float = 0.0
) -> Move | tuple[Infeasible[ConsolidationReason], ...]:
    """The move that takes exactly these nodes, whatever holds them; or why there is none.

    Eligibility, budgets and scores are not asked, but the score is given.
    """
    rows = [view.snapshot.find(name) for name in names]
    unknown = [name for name, row in zip(names, rows, strict=True) if row is None]
    if unknown:
        return tuple(
            Infeasible(ConsolidationReason.GONE, f"there is no node {name}", f"node {name}")
            for name in unknown
        )
    chosen = [row for row in rows if row is not None]
    judged = find_candidates(view, settings, now)
    judged = replace(judged, candidates=np.array(chosen, dtype=np.int64), empty=np.zeros(0, dtype=np.int64))
    planner = Planner(view, settings, now, judged=judged)
    world = planner.world
    world.policies = {pool: world.policies.get(pool, _UNSCORED) for pool in {*world.policies, *world.pool_of}}
    with world.trial():
        draft = delete(world, chosen)
    if isinstance(draft, UnplacedShapes):
        draft = Replacement(world).replace(chosen)
    if not isinstance(draft, UnplacedShapes):
        return planner.move(draft)
    others = view.snapshot.without(names)
    return (
        draft.why,
        *(
            Infeasible(
                draft.why.reason, f"pod {pod} finds no place{_why_nowhere(view, others, pod)}", f"pod {pod}"
            )
            for pod in pods_shown(world, chosen, draft.shapes, limit=10)
        ),
    )


def _why_nowhere(view: ClusterView, others: Room, pod: str) -> str:
    """What speaks against the nodes that stay, each by itself; pods may also be too many together."""
    shape = view.snapshot.shapes[int(view.pods.shapes[view.pods.keys.index(pod)])]
    reasons = explain_nodes(others, shape)
    return f": {'; '.join(map(show_count, reasons[:_REASONS_SHOWN]))}" if reasons else ""


# Saved plans


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """`refused` says of each move that does not hold any more why; `too_old` of the whole plan."""

    moves: tuple[Move, ...]
    refused: Mapping[str, tuple[Infeasible[ConsolidationReason], ...]]
    unchanged: bool  # nothing at all that decided the plan has changed
    too_old: Infeasible[ConsolidationReason] | None = None

    @property
    def good(self) -> tuple[Move, ...]:
        """The moves that may be made, in the order of the plan."""
        return () if self.too_old else tuple(move for move in self.moves if move.id not in self.refused)


def check_plan(
    plan: ConsolidationPlan,
    view: ClusterView,
    settings: PlanSettings,
    now: float,
    *,
    max_age_seconds: float | None,
) -> PlanCheck:
    """`max_age_seconds`: None for any age. Raises Invalid for a plan that contradicts itself."""
    now_settings = replace(settings, heed_budgets=True, deadline_seconds=None)
    moves = _distinct(plan.moves)
    results = validate_all(moves, view, now_settings, now)
    return PlanCheck(
        moves,
        {name: why for name, why in results.items() if why},
        unchanged=not is_stale(plan, view),
        too_old=_too_old(plan, now, max_age_seconds),
    )


def _distinct(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Each once, though a file may say it twice. Raises Invalid when two of them share a node."""
    distinct: list[Move] = []
    for move in moves:
        if move not in distinct:
            distinct.append(move)
    named = Counter(name for move in distinct for name in (f"move {move.id}", *set(move.names)))
    twice = [name for name, times in named.items() if times > 1]
    if twice:
        raise Invalid("moves", twice[0], "occurs twice; make a new plan")
    return tuple(distinct)


def _too_old(
    plan: ConsolidationPlan, now: float, limit: float | None
) -> Infeasible[ConsolidationReason] | None:
    age = float(int(now - plan.made_at))
    if limit is None or 0 <= age <= limit:
        return None
    shown = durations.show(limit)
    if age < 0:
        return Infeasible(
            ConsolidationReason.AGE,
            f"the plan is from {durations.show(-age)} in the future; check the clocks",
        )
    return Infeasible(
        ConsolidationReason.AGE,
        f"the plan is {durations.show(age)} old, and the limit is {shown}; make a new plan",
    )
