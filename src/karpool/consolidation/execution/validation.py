"""Validates moves again: before they are made, before a saved plan is applied, and for what-if questions.

Validation repeats the whole decision on the current cluster: nodes and claims, their pods, every rule of
eligibility, budgets, capacity, and the score.

A saved plan is stale if it is too old, or if one of its moves would not be decided again. Budgets always
apply, even to a plan that was made without them.
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
_REASONS_SHOWN = 3  # per pod: a longer list is not readable
_TIMEOUT_SECONDS = (600.0, 3600.0)


def same_outcome(
    planned_types: Collection[str] | None, new_nodes: int, types: Collection[str], *, unplaced: bool
) -> bool:
    """Whether a second simulation confirms a command. `planned_types` is None for a delete.

    A replacement is confirmed if it needs the same number of nodes and the planned types are still possible.
    """
    if unplaced or new_nodes != (planned_types is not None):
        return False
    return planned_types is None or set(planned_types) <= set(types)


def command_timeout(queued: int) -> float:
    """Timeout of a command in seconds, by the number of queued nodes."""
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
    """Validate moves in order, each on top of the earlier valid ones; return the objections by move id.

    `arrived` are the new nodes of moves (by id) in the order of the plan, once they are ready. `targets` are
    nodes that may receive pods even if they are young. `begun` are moves (by id) whose nodes are cordoned.
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
    """The validation of one move."""

    def __init__(
        self, planner: Planner, move: Move, arrived: Sequence[str], received: Bools, *, begun: bool
    ) -> None:
        """`received`: rows that received pods before any move of this validation."""
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
        """Apply every rule for the planned kind of move: an empty node that filled up is refused.

        A node that became empty is left to the emptiness method, unless the move has begun: rolling it back
        would only lead to a second removal.
        """
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
        """Refuse nodes that an earlier move now needs for its pods, because their planned place is gone."""
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
        if left and world.relocation.expects_new:  # retry: placed before the new nodes
            world.relocation.undo(removed)
            placed, left = self._place(rows, new)
        if left and move.kind is not MoveKind.EMPTY:
            world.relocation.undo(mark)
            return (no_room(world, left).why,)
        price = sum(node.price_per_hour for node in move.new_nodes) if move.new_nodes else None
        draft = CandidateMove(tuple(rows), tuple(placed), tuple(bought), world.verdict(rows, price))
        return self._decide(draft, mark)

    def _place(self, rows: list[int], new: Mapping[int, Pods]) -> tuple[list[tuple[int, int, int]], Pods]:
        """Place the pods that need no new node: at their planned place, otherwise anywhere. Return the
        unplaced ones too.
        """
        world, relocation = self._world, self._world.relocation
        left = dict(world.demand(rows))
        for pods in new.values():
            for shape, number in pods.items():
                left[shape] -= number
        placed: list[tuple[int, int, int]] = []
        homes, waiting = list(self._planned(rows)), -1
        while len(homes) != waiting:  # spread may allow a pod only after another is placed
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
        while progress:  # spread may allow a pod only after another is placed
            progress = False
            for shape in [unplaced for unplaced, number in left.items() if number > 0]:
                for row, number in relocation.place(shape, left[shape]):
                    placed.append((shape, row, number))
                    left[shape] -= number
                    progress = True
        return placed, {shape: number for shape, number in left.items() if number > 0}

    def _planned(self, rows: Iterable[int]) -> Iterable[tuple[int, int]]:
        """Shape and row of every pod whose planned node still exists."""
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
        """The pods of each new node that still exist, by shape."""
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
        """The planned types that are still available and still hold the pods, or the objection.

        Only these types count against limits.
        """
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
    """Filter the objections to a move whose new nodes are already paid for.

    The score was approved before the launch. New nodes raise the pool's cost, so the same move scores less
    now; while it still saves money, a rollback only wastes what was paid.
    """
    rest = tuple(objection for objection in why if objection.reason not in _AGREED_BEFORE_PAYING)
    if draft.savings > LEAST_SAVING:
        return rest
    message = f"the new nodes save ${draft.savings:.4f} per hour, so they are not cheaper than the old ones"
    return (Infeasible(ConsolidationReason.NOT_CHEAPER, message), *rest)


def promised_by(move: Move, arrived: Sequence[str]) -> dict[str, str]:
    """The planned node of each pod; empty for a node that is still to come."""
    homes = {pod.pod: pod.node for pod in move.pods if pod.node}
    for pod in move.pods:
        if pod.new_node is not None:
            homes[pod.pod] = arrived[pod.new_node] if 0 <= pod.new_node < len(arrived) else ""
    return homes


def what_if(
    view: ClusterView, names: Sequence[str], settings: PlanSettings = DEFAULTS, now: float = 0.0
) -> Move | tuple[Infeasible[ConsolidationReason], ...]:
    """Return the move that removes exactly these nodes, or the reasons why there is none.

    Eligibility, budgets and the score's threshold are ignored; the score is computed.
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
    """Why each remaining node alone cannot take the pod. Pods may also be too many together."""
    shape = view.snapshot.shapes[int(view.pods.shapes[view.pods.keys.index(pod)])]
    reasons = explain_nodes(others, shape)
    return f": {'; '.join(map(show_count, reasons[:_REASONS_SHOWN]))}" if reasons else ""


# Saved plans


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """`refused` has the objections to each invalid move; `too_old` concerns the whole plan."""

    moves: tuple[Move, ...]
    refused: Mapping[str, tuple[Infeasible[ConsolidationReason], ...]]
    unchanged: bool  # nothing that decided the plan has changed
    too_old: Infeasible[ConsolidationReason] | None = None

    @property
    def good(self) -> tuple[Move, ...]:
        """The valid moves, in the order of the plan."""
        return () if self.too_old else tuple(move for move in self.moves if move.id not in self.refused)


def check_plan(
    plan: ConsolidationPlan,
    view: ClusterView,
    settings: PlanSettings,
    now: float,
    *,
    max_age_seconds: float | None,
) -> PlanCheck:
    """Validate a saved plan; `max_age_seconds` None: any age. Raises Invalid if it contradicts itself."""
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
    """Remove duplicate moves. Raises Invalid if two different moves share a node."""
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
