"""Makes a plan from a view: checks eligibility, searches moves, and explains every node and pod.

Pure: the same view, settings and moment give the same plan. Only a deadline introduces time, through
`elapsed`; the plan then names what was not considered.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import fsum

from karpool.cluster.market.fleet_bill import FleetBill
from karpool.consolidation.fingerprint import fingerprint
from karpool.consolidation.methods.method import PlanDeadline, SearchProgress, SearchResult
from karpool.consolidation.methods.purchase import launch_types
from karpool.consolidation.methods.replacement import pods_shown
from karpool.consolidation.planning.plan import (
    ClusterTotals,
    ConsolidationPlan,
    Move,
    MovedPod,
    MoveKind,
    NotConsidered,
    PoolSummary,
    RejectedMove,
    ReplacementNode,
    SourceNode,
)
from karpool.consolidation.planning.search import search
from karpool.consolidation.planning.warm_search import LastSearch, contents_of, search_again
from karpool.consolidation.policy.budgets import DisruptionAllowance, permission
from karpool.consolidation.policy.candidates import CandidateNodes, find_candidates
from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import (
    PoolMember,
    PoolTotals,
    pool_totals,
)
from karpool.consolidation.policy.settings import DEFAULTS, PlanSettings
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
)
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.consolidation.view import ClusterView
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.resources import CPU, MEMORY

NODE_COST_WITHOUT_NODE = 1.0
_SHOWN_RESOURCES = (CPU, MEMORY)


def plan_consolidation(
    view: ClusterView,
    settings: PlanSettings = DEFAULTS,
    now: float = 0.0,
    *,
    elapsed: Callable[[], float] | None = None,
    progress: SearchProgress | None = None,
) -> ConsolidationPlan:
    """Make a plan. `elapsed` returns seconds since planning began, for `settings.deadline_seconds`;
    `progress` is updated during the search.
    """
    return Planner(view, settings, now, elapsed, progress=progress).plan()


def totals_of(view: ClusterView) -> dict[str, PoolTotals]:
    """Totals over all nodes of each pool, including claims without a node."""
    costs = view.node_costs.tolist()
    nodes = [
        PoolMember(machine.pool, cost, machine.price_per_hour)
        for machine, cost in zip(view.machines, costs, strict=True)
    ]
    nodes += (
        PoolMember(machine.pool, NODE_COST_WITHOUT_NODE, machine.price_per_hour)
        for machine in view.claims_without_node
    )
    return pool_totals(node for node in nodes if node.pool)


def permission_now(
    view: ClusterView, judged: CandidateNodes, settings: PlanSettings, now: float
) -> DisruptionAllowance:
    readable = {name: rules.settings for name, rules in judged.rules.items() if not rules.problem}
    return permission(view, settings, readable, now)


class Planner:
    """Makes one plan. `validation` also uses it for single moves."""

    def __init__(
        self,
        view: ClusterView,
        settings: PlanSettings,
        now: float,
        elapsed: Callable[[], float] | None = None,
        *,
        judged: CandidateNodes | None = None,
        permitted: DisruptionAllowance | None = None,
        last: LastSearch | None = None,
        progress: SearchProgress | None = None,
    ) -> None:
        """`last`: the search of a view with the same shapes, pools, offerings, daemons and limits."""
        self.view, self.settings, self.now, self._last = view, settings, now, last
        self._timer = PlanDeadline(elapsed, settings.deadline_seconds, progress)
        self.judged = find_candidates(view, settings, now) if judged is None else judged
        self.totals = totals_of(view)
        self.permission = permitted or permission_now(view, self.judged, settings, now)
        self._pools = self._pool_states()  # before any move is accepted
        one_node = last.one_node if last is not None else None
        self.world = PlanningState(
            view, self.judged, settings, self.totals, self.permission, one_node=one_node
        )
        self._limits = self.world.one_node.limits()
        self._moving: list[bool] = view.pods.moves.tolist()
        self.searched: LastSearch | None = None  # for the next plan
        self.is_warm = False

    def plan(self) -> ConsolidationPlan:
        result = self._result()
        result.drafts = self._revalued(result.drafts)
        made = [self.move(draft) for draft in result.drafts]
        rejected = list(self._rejected(result))
        return ConsolidationPlan(
            made_at=self.now,
            fingerprint=fingerprint(self.view),
            moves=tuple(made),
            rejected=tuple(rejected),
            held=tuple(self._held(result, rejected)),
            pools=self._pools,
            before=before(self.view),
            after=after(self.view, made),
            problems=tuple(self.view.problems),
            not_looked_at=tuple(self._not_looked_at(result)),
            stopped=self.view.stop,
        )

    def _result(self) -> SearchResult:
        state = self.world
        result = search_again(state, self._timer, self._last) if self._last is not None else None
        self.is_warm = result is not None
        if result is None:
            result = search(state, self._timer)
        # Keep the drafts as found: the next search counts new nodes of moves from zero.
        kept = replace(result, drafts=result.drafts.copy())
        state.one_node.restore(self._limits)
        self.searched = LastSearch(self.view, contents_of(self.view), state.candidates, kept, state.one_node)
        return result

    def _revalued(self, drafts: list[CandidateMove]) -> list[CandidateMove]:
        """Recompute each saving in the order of execution: the bill before less the bill after."""
        bill = self.view.bill
        if bill is None:
            return drafts
        fleet, revalued = bill.fleet, []
        for draft in drafts:
            after = bill.without(fleet, (self.view.machines[row].billed for row in draft.rows))
            coming = [bill.kind_of(fitting.pool, fitting.options(1)[0]) for fitting, _ in draft.new]
            after = bill.with_more(after, coming)
            savings = bill.beyond(fleet) - bill.beyond(after)
            revalued.append(replace(draft, verdict=replace(draft.verdict, savings_per_hour=savings)))
            fleet = after
        return revalued

    # Moves as values

    def move(self, draft: CandidateMove) -> Move:
        rows = draft.rows
        kind = MoveKind.REPLACE if draft.new else MoveKind.DELETE
        if draft.reason is DisruptionReason.EMPTY:
            kind = MoveKind.EMPTY
        new_nodes = tuple(self._new_nodes(draft))
        nodes = tuple(self.source(row) for row in rows)
        notes = []
        if draft.unplaced:
            notes.append(f"{draft.unplaced} pods with cost 0 do not fit elsewhere and will be pending")
        if draft.verdict.unpriced:
            notes.append(f"{draft.verdict.unpriced} of its nodes have an unknown price, which counts as 0")
        return Move(
            id=_move_id(nodes, new_nodes),
            kind=kind,
            reason=draft.reason,
            nodes=nodes,
            pods=tuple(self._moved(draft)),
            new_nodes=new_nodes,
            verdict=draft.verdict,
            notes=tuple(notes),
        )

    def source(self, row: int) -> SourceNode:
        machine = self.view.machines[row]
        labels, claim = machine.labels, machine.claim
        return SourceNode(
            machine.name,
            claim.name if claim is not None else "",
            machine.pool,
            labels.get(INSTANCE_TYPE, ""),
            labels.get(ZONE, ""),
            labels.get(CAPACITY_TYPE, ""),
            machine.price_per_hour,
            float(self.world.costs[row]),
            claim.uid if claim is not None else "",
            machine.list_price_per_hour,
        )

    def _destinations(self, draft: CandidateMove) -> dict[int, deque[tuple[int, int, int]]]:
        """By shape: row or -1, number of the new node, and number of pods."""
        homes: dict[int, deque[tuple[int, int, int]]] = defaultdict(deque)
        for shape, row, pods in draft.placed:
            homes[shape].append((row, -1, pods))
        for number, (_, pods_of) in enumerate(draft.new):
            for shape, pods in pods_of.items():
                homes[shape].append((-1, number, pods))
        return homes

    def _moved(self, draft: CandidateMove) -> Iterable[MovedPod]:
        pods, names, moving = self.view.pods, self.view.snapshot.names, self._moving
        places = self._destinations(draft)
        for row in draft.rows:
            for pod in pods.on(row):
                if not moving[pod]:
                    continue
                node, new_node = "", None
                queue = places.get(int(pods.shapes[pod]))
                if queue:
                    target, number, left = queue.popleft()
                    if left > 1:
                        queue.appendleft((target, number, left - 1))
                    node, new_node = (names[target], None) if target >= 0 else ("", number)
                yield MovedPod(pods.keys[pod], names[row], float(pods.costs[pod]), node, new_node)

    def _new_nodes(self, draft: CandidateMove) -> Iterable[ReplacementNode]:
        names = self._pods_of_new_nodes(draft) if draft.new else {}
        for number, (fitting, _) in enumerate(draft.new):
            limit = launch_types(self.world, draft.rows, fitting)
            overhead = fitting.launch.overhead[:, fitting.types].min(axis=1)
            asked = dict(fitting.amounts)
            requests = {
                name: asked.get(index, 0) + int(overhead[index])
                for index, name in enumerate(self.world.one_node.resources)
                if asked.get(index, 0) + int(overhead[index])
            }
            yield ReplacementNode(
                fitting.pool, fitting.options(limit), tuple(names.get(number, ())), requests
            )

    def _pods_of_new_nodes(self, draft: CandidateMove) -> dict[int, list[str]]:
        keys: dict[int, list[str]] = defaultdict(list)
        for pod in self._moved(draft):
            if pod.new_node is not None:
                keys[pod.new_node].append(pod.pod)
        return keys

    # Rejected moves and kept nodes

    def _rejected(self, result: SearchResult) -> Iterable[RejectedMove]:
        known = self._last.moves if self._last is not None and self.is_warm else {}
        for draft, why in result.refused.values():
            move = known.get(draft) or self.move(draft)
            if self.searched is not None:
                self.searched.moves[draft] = move
            yield RejectedMove(move, why)

    def _held(self, result: SearchResult, rejected: Iterable[RejectedMove]) -> Iterable[KeptNode]:
        world, view = self.world, self.view
        refused = {name: move.why for move in rejected for name in move.move.names}
        not_looked_at = frozenset(result.not_looked_at)
        for row, machine in enumerate(view.machines):
            if world.gone[row] and row not in self.judged.held:
                continue
            if row in self.judged.held:
                why = self.judged.held[row]
            elif machine.name in refused:
                why = refused[machine.name]
            elif row in world.buffered:
                why = (world.buffer_reason(row),)
            elif world.receives[row]:
                why = (
                    Infeasible(
                        ConsolidationReason.RECEIVES_PODS,
                        "pending pods, or pods of removed nodes, are placed there",
                    ),
                )
            elif row in not_looked_at:
                why = (
                    Infeasible(
                        ConsolidationReason.NOT_CONSIDERED, "not considered before the planning deadline"
                    ),
                )
            else:
                why = self._stuck(result, row)
            price = machine.price_per_hour
            yield KeptNode(machine.name, machine.pool, price, float(world.costs[row]), why)
        yield from self.judged.stray

    def _stuck(self, result: SearchResult, row: int) -> tuple[Infeasible[ConsolidationReason], ...]:
        stuck = result.stuck.get(row)
        if stuck is None:
            return (Infeasible(ConsolidationReason.NO_GAIN, "no move that takes it saves anything"),)
        shown = pods_shown(self.world, (row,), stuck.shapes)
        if not shown:
            return (stuck.why,)
        message = f"{stuck.why.detail} (pods {', '.join(shown)})"
        return (Infeasible(stuck.why.reason, message, f"pod {shown[0]}"),)

    def _not_looked_at(self, result: SearchResult) -> Iterable[NotConsidered]:
        names = self.view.snapshot.names
        if result.not_looked_at:
            rows = tuple(names[row] for row in result.not_looked_at)
            yield NotConsidered(
                rows, f"not considered before the planning deadline of {self.settings.deadline_seconds:g} s"
            )
        if result.not_combined:
            rows = tuple(names[row] for row in result.not_combined)
            deadline = self.settings.deadline_seconds
            why = (
                "there are too many groups"
                if deadline is None
                else f"the deadline of {deadline:g} s was reached"
            )
            yield NotConsidered(rows, f"looked at alone, not together with others: {why}")

    def _pool_states(self) -> tuple[PoolSummary, ...]:
        states = []
        for name, rules in sorted(self.judged.rules.items()):
            totals = self.totals.get(name, PoolTotals(0.0, 0.0))
            allowance = self.permission.pools.get(name)
            why = allowance.closed if allowance is not None else ()
            if rules.problem:
                why = (
                    Infeasible(
                        ConsolidationReason.NODEPOOL_UNREADABLE,
                        f"nodepool {name}: {rules.problem}",
                        f"nodepool {name}",
                    ),
                )
            states.append(
                PoolSummary(
                    name,
                    str(rules.policy) if rules.policy is not None else "",
                    totals.nodes,
                    totals.cost_per_hour,
                    totals.disruption,
                    totals.unpriced,
                    dict(allowance.left) if allowance is not None else {},
                    why,
                    rules.policy.k if rules.policy is not None and rules.policy.is_scored else None,
                )
            )
        return tuple(states)


def _move_id(nodes: Iterable[SourceNode], new_nodes: Iterable[ReplacementNode]) -> str:
    digest = blake2b(digest_size=6)
    for node in nodes:
        digest.update(f"{node.name}\0{node.claim_uid}\0".encode())
    for kind, number in sorted(
        Counter(
            (replacement_node.pool, replacement_node.chosen.instance_type) for replacement_node in new_nodes
        ).items()
    ):
        digest.update(f"{kind}\0{number}\0".encode())
    return digest.hexdigest()


# A cluster in a few numbers, as it is and as it would be after some moves


def before(view: ClusterView) -> ClusterTotals:
    return after(view, ())


def after(view: ClusterView, moves: Iterable[Move]) -> ClusterTotals:
    """The totals after the moves. The pods are the same; daemons are not adjusted."""
    chosen = list(moves)
    gone = {name for move in chosen for name in move.names}
    snapshot = view.snapshot
    prices: list[float] = []
    unpriced = 0
    by_type: Counter[str] = Counter()
    by_pool: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    nodes = 0
    whole = {name: snapshot.allocatable(name).tolist() for name in _SHOWN_RESOURCES}
    for row, machine in enumerate(view.machines):
        if machine.name in gone:
            continue
        nodes += 1
        by_type[machine.labels.get(INSTANCE_TYPE, "")] += 1
        by_pool[machine.pool] += 1
        if machine.price_per_hour is None:
            unpriced += 1
        else:
            prices.append(machine.price_per_hour)
        for name in _SHOWN_RESOURCES:
            offered[name] += whole[name][row]
    for move in chosen:
        for new in move.new_nodes:
            types = view.offerings.catalogue_of(new.pool).types
            nodes += 1
            by_type[new.chosen.instance_type] += 1
            by_pool[new.pool] += 1
            prices.append(new.price_per_hour)
            for name in _SHOWN_RESOURCES:
                offered[name] += types[new.chosen.instance_type].allocatable.get(name, 0)
    asked = {name: int((snapshot.allocatable(name) - snapshot.free(name)).sum()) for name in _SHOWN_RESOURCES}
    return ClusterTotals(
        nodes=nodes,
        pods=len(view.pods.keys),
        price_per_hour=fsum(prices) if view.bill is None else _billed(view, view.bill, chosen),
        unpriced=unpriced,
        use={name: asked[name] / offered[name] if offered[name] else 0.0 for name in _SHOWN_RESOURCES},
        by_type=dict(sorted(by_type.items())),
        by_pool=dict(sorted(by_pool.items())),
        list_price_per_hour=None if view.bill is None else _listed(view, view.bill, chosen),
    )


def _listed(view: ClusterView, bill: FleetBill, moves: Sequence[Move]) -> float:
    """The list price of the machines after the moves."""
    gone = {name for move in moves for name in move.names}
    prices = [machine.list_price_per_hour or 0.0 for machine in view.machines if machine.name not in gone]
    prices += (bill.list_price_of(new.pool, new.chosen) or 0.0 for move in moves for new in move.new_nodes)
    return fsum(prices)


def _billed(view: ClusterView, bill: FleetBill, moves: Iterable[Move]) -> float:
    """The bill after the moves, including commitments."""
    fleet = bill.with_more({}, (machine.billed for machine in view.machines))
    billed = {machine.name: machine.billed for machine in view.machines}
    for move in moves:
        fleet = bill.without(fleet, (billed.get(name) for name in move.names))
        fleet = bill.with_more(fleet, (bill.kind_of(new.pool, new.chosen) for new in move.new_nodes))
    return bill.per_hour(fleet)
