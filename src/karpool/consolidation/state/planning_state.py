"""The state of the cluster during a search, with the accepted moves applied.

A `CandidateMove` says where the pods of some nodes would go. Methods try moves on columns within a `trial`,
which undoes them. `accept` adds a move to the plan, and its capacity is no longer available to others.
Methods keep their own memo tables.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from karpool.cluster.pods.disruption_store import RESCHEDULABLE
from karpool.consolidation.policy.budgets import DisruptionAllowance
from karpool.consolidation.policy.candidates import CandidateNodes
from karpool.consolidation.policy.policy import ConsolidationPolicy
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.scoring import (
    Floats,
    MoveVerdict,
    PoolTotals,
    ScoredNode,
    ratios,
    score_sources,
)
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.state.candidate_move import CandidateMove, Pods, RelocationAttempt, UnplacedShapes
from karpool.consolidation.state.pods_to_move import Demand, PodsToMove
from karpool.consolidation.view import ClusterView
from karpool.model import resources
from karpool.model.contracts.contract import Fleet
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.packing.new_nodes.claim_templates import DriversToCome
from karpool.packing.new_nodes.pack import PackOptions, pack_new_nodes
from karpool.packing.new_nodes.pack_order import CHEAPEST
from karpool.packing.new_nodes.pack_result import PendingPod, PlannedNode
from karpool.packing.pool_reasons import show_pool
from karpool.packing.relocation import relocation as relocating
from karpool.packing.relocation.relocation import Relocation
from karpool.packing.relocation.single_node import FittingTypes, SingleNodePacker
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import PodPlacement, Room

# Nodes of one pass whose topology-bound pods are tried on new nodes with the packer of pending pods, which
# scans the whole cluster each time. On the packed cluster of 1,000 nodes of `bench.plans` none is needed and
# none is left out: whether one new node takes such pods is decided without it. Bounds odd clusters.
BOUND_TRIES_MAX = 300


class SourceKind(NamedTuple):
    """The properties of a source node that its replacement depends on."""

    instance_type: str
    capacity_type: str
    price: float


@dataclass(frozen=True, slots=True, eq=False)
class PlanningMark:
    """A point to rewind to."""

    stage: int
    relocation: relocating.RelocationMark
    gone: Bools
    receives: Bools
    arrived: int
    limits: list[dict[str, int]]
    permission: DisruptionAllowance
    fleet: Fleet


class PlanningState:
    remembers = True  # so do the methods; tests compare with a state that does not

    def __init__(
        self,
        view: ClusterView,
        judged: CandidateNodes,
        settings: PlanSettings,
        totals: Mapping[str, PoolTotals],
        permission: DisruptionAllowance,
        *,
        one_node: SingleNodePacker | None = None,
    ) -> None:
        """`one_node` comes from a state whose view has the same pools, offerings, daemons and limits."""
        self.view, self.judged, self.settings = view, judged, settings
        self.totals, self.permission = totals, permission
        self.policies: Mapping[str, ConsolidationPolicy] = judged.policies
        self.prices: Floats = np.nan_to_num(view.prices, nan=0.0)
        self.fleet: Fleet = view.bill.fleet if view.bill is not None else {}
        self.costs: Floats = view.node_costs
        self.pool_of: list[str] = [machine.pool for machine in view.machines]
        self.candidates: Int64s = judged.candidates
        self.gone: Bools = np.zeros(view.snapshot.n, dtype=np.bool_)
        self.receives: Bools = np.zeros(view.snapshot.n, dtype=np.bool_)
        self.buffered: dict[int, str] = {}  # row to the buffer that needs its capacity
        self._kinds: dict[int, SourceKind] = {}
        self._asked: dict[int, str] = {}
        self.stage = 0  # the same number means that the same drafts were accepted in the same order
        self._kept_stages = {0}  # attempts of other stages are dropped to bound memory
        self._next_stage: dict[tuple[int, CandidateMove], int] = {}
        self._tried: dict[int, dict[int, RelocationAttempt]] = {}  # by stage and row
        self.arrived: list[tuple[int, int, int]] = []  # shape, row, pods: the pods sent to nodes so far
        self.ranks = self._ranks()
        # Rows are numbered in order of arrival; decisions that depend on an order use names.
        self.turn: Int64s = np.empty(view.snapshot.n, dtype=np.int64)
        self.turn[np.argsort(np.array(view.snapshot.names, dtype=np.str_))] = np.arange(view.snapshot.n)
        self.demands = PodsToMove(view)
        self.relocation = Relocation(view.snapshot, self._order(), judged.targets, self._shapes())
        table = view.snapshot.shapes
        shapes = {number: table[number] for number in self._shapes()}
        self.one_node = (
            one_node
            if one_node is not None and one_node.learn(shapes)
            else SingleNodePacker(
                shapes,
                view.pools.values(),
                view.offerings,
                daemons=view.daemons,
                usage=view.usage,
                unavailable=view.unavailable,
                drivers=DriversToCome(view.snapshot),
            )
        )
        self.tries_left = BOUND_TRIES_MAX
        self._overlay: tuple[list[tuple[int, int, int]], Room] | None = None
        self._make_room_for_others()

    # Facts

    def _ranks(self) -> Floats:
        """By row: the best-case score of a candidate, comparable between pools."""
        norm = {
            pool: totals.disruption / totals.cost_per_hour if totals.cost_per_hour > 0 else 0.0
            for pool, totals in self.totals.items()
        }
        by_row = np.array([norm.get(pool, 0.0) for pool in self.pool_of])
        ranks: Floats = ratios(self.prices, self.costs) * by_row
        return ranks

    def _order(self) -> Int64s:
        """Rows in the order in which they are filled: nodes that stay, the fullest first; then candidates,
        the least promising first.
        """
        snapshot = self.view.snapshot
        going = np.zeros(snapshot.n, dtype=np.bool_)
        going[self.candidates] = True
        going[self.judged.empty] = True
        free = self._share_left()
        order: Int64s = np.lexsort((self.turn, np.where(going, self.ranks, free), going))
        return order

    def _share_left(self) -> Floats:
        """By row: the free share of the node, over all usual resources."""
        snapshot = self.view.snapshot
        left = np.zeros(snapshot.n)
        for name in ("cpu", "memory"):
            whole = np.maximum(snapshot.allocatable(name), 1)
            left += snapshot.free(name) / whole
        return left / 2

    def _shapes(self) -> list[int]:
        """Every shape that may be placed or removed."""
        pods = self.view.pods
        going = np.zeros(self.view.snapshot.n, dtype=np.bool_)
        going[self.candidates] = True
        going[self.judged.empty] = True
        chosen = set(np.unique(pods.shapes[going[pods.rows]]).tolist())
        snapshot = self.view.snapshot
        waiting = (*self.view.pending, *self.view.buffer_of)
        chosen |= {snapshot.pending[key] for key in waiting if key in snapshot.pending}
        for row, machine in enumerate(self.view.machines):
            if machine.is_leaving:
                chosen |= set(snapshot.pods_on(row).values())
        return sorted(chosen)

    def demand(self, rows: Sequence[int]) -> Demand:
        """Shapes and numbers of the pods that move, the largest first."""
        return self.demands.of(rows)

    @cached_property
    def is_simple(self) -> bool:
        """Whether skipping a query changes no later answer.

        That holds if no pod has topology, for which the number of tries is limited, or alternatives, of which
        the first one met counts.
        """
        if not self.remembers:
            return False
        bound = any(self.relocation.is_restricted(shape) for shape in self._shapes())
        return not bound and not self.one_node.has_alternatives

    def asked(self, shape: int) -> str:
        """The requests of a shape, in words."""
        text = self._asked.get(shape)
        if text is None:
            requests = dict(self.view.snapshot.shapes[shape].requests)
            text = self._asked[shape] = resources.show(requests) or "a slot"
        return text

    def kind(self, row: int) -> SourceKind:
        kind = self._kinds.get(row)
        if kind is None:
            labels = self.view.machines[row].labels
            kind = self._kinds[row] = SourceKind(
                labels.get(INSTANCE_TYPE, ""), labels.get(CAPACITY_TYPE, ""), float(self.prices[row])
            )
        return kind

    def _make_room_for_others(self) -> None:
        """Place the pods of leaving nodes and the pending pods before planning.

        Pods with a planned node come first. Pods that find no place are left to other controllers.
        """
        view, relocation = self.view, self.relocation
        leaving = [row for row in np.argsort(self.turn).tolist() if view.machines[row].is_leaving]
        self.gone[leaving] = True
        settled = {row: self._keep_promises(row) for row in leaving}
        for row in leaving:
            for shape, number in self.demand((row,)):
                self._receive(shape, relocation.place(shape, number - settled[row][shape]))
        pending = Counter(view.snapshot.pending[key] for key in view.pending)
        for shape, number in self.demands.sorted(pending):
            self._receive(shape, relocation.place(shape, number))
        self._fill_buffers()
        relocation.commit()

    def _fill_buffers(self) -> None:
        """Reserve capacity for the pods of capacity buffers, last of all and preferably on nodes that stay.

        The owner of a buffer launches nodes for the pods that find no place.
        """
        waiting = self.view.snapshot.pending
        rank = self.demands.rank
        pods = Counter(
            (int(rank[waiting[key]]), buffer, waiting[key]) for key, buffer in self.view.buffer_of.items()
        )
        for (_, buffer, shape), number in sorted(pods.items()):
            homes = self.relocation.place(shape, number)
            self._receive(shape, homes)
            for row, _ in homes:
                self.buffered.setdefault(row, buffer)

    def buffer_reason(self, row: int) -> Infeasible[ConsolidationReason]:
        buffer = self.buffered[row]
        message = (
            f"capacity buffer {buffer} needs its capacity: the pods of the buffer fit on no remaining node"
        )
        return Infeasible(ConsolidationReason.BUFFER_PODS, message, f"capacitybuffer {buffer}")

    def _keep_promises(self, row: int) -> Counter[int]:
        """Place the pods of a leaving node on their planned nodes; return the shapes of settled pods."""
        view, relocation, pods = self.view, self.relocation, self.view.pods
        settled: Counter[int] = Counter()
        for pod in pods.on(row) if view.promised else ():
            home = view.promised.get(pods.keys[pod])
            if home is None or not pods.flags[pod] & RESCHEDULABLE:
                continue
            shape, target = int(pods.shapes[pod]), view.snapshot.find(home) if home else None
            if target is not None and relocation.allows(shape, target) and relocation.put(shape, target, 1):
                self._receive(shape, ((target, 1),))
                settled[shape] += 1
            elif not home or (target is not None and self._is_closed_to_others(shape, target)):
                settled[shape] += 1
        return settled

    def _is_closed_to_others(self, shape: int, row: int) -> bool:
        """Whether the node stays but takes no other pods because it is young: its capacity is not counted."""
        machine = self.view.machines[row]
        if self.judged.targets[row] or machine.is_leaving or machine.name in self.view.in_flight:
            return False
        return bool(self.relocation.admits(shape)[self.relocation.position_of[row]])

    def _receive(self, shape: int, placed: Iterable[tuple[int, int]]) -> None:
        for row, pods in placed:
            self.receives[row] = True
            self.arrived.append((shape, row, pods))

    # Trials

    def tried(self, rows: Sequence[int]) -> RelocationAttempt | None:
        """The known result of `relocate`; None if unknown.

        It is known if it was computed since the last accepted draft, or if no node has capacity for any of
        the pods.
        """
        if len(rows) > 1 or self.relocation.mark():
            return None
        attempts = self._tried.get(self.stage)
        attempt = None if attempts is None else attempts.get(rows[0])
        if attempt is None and self.remembers:
            demand = self.demand(rows)
            if demand and all(self.relocation.is_full(shape) for shape, _ in demand):
                attempt = self._remember(rows[0], RelocationAttempt([], dict(demand)))
        return attempt

    def _remember(self, row: int, attempt: RelocationAttempt) -> RelocationAttempt:
        self._tried.setdefault(self.stage, {})[row] = attempt
        return attempt

    def relocate(
        self, rows: Sequence[int], arrived: Mapping[int, int] | None = None, *, whole: bool = False
    ) -> RelocationAttempt:
        """Remove nodes and place their pods on others; return the places and the pods without one.

        `arrived` are pods that the plan had sent to these nodes. `whole`: stop at the first shape that finds
        no place. Stays applied until the trial ends.
        """
        relocation = self.relocation
        from_scratch = relocation.mark() == 0 and not arrived
        self.remove(rows)
        placed: list[tuple[int, int, int]] = []
        left: Pods = {}
        demand = self.demand(rows)
        if arrived:
            demand = self.demands.sorted(Counter(dict(demand)) + Counter(arrived))
        for shape, number in demand:
            homes = relocation.place(shape, number)
            placed += ((shape, row, pods) for row, pods in homes)
            missing = number - sum(pods for _, pods in homes)
            if missing:
                left[shape] = missing
                if whole and not relocation.is_restricted(shape):
                    return RelocationAttempt(placed, left)
        progress = bool(left)
        while progress:  # spread may allow a pod only after another is placed
            progress = False
            for shape in [other for other in left if relocation.is_restricted(other)]:
                homes = relocation.place(shape, left[shape])
                placed += ((shape, row, pods) for row, pods in homes)
                if homes:
                    progress = True
                    left[shape] -= sum(pods for _, pods in homes)
                    if not left[shape]:
                        del left[shape]
        attempt = RelocationAttempt(placed, left)
        if from_scratch and len(rows) == 1 and self.remembers:
            self._remember(rows[0], attempt)
        return attempt

    def remove(self, rows: Sequence[int]) -> None:
        """Remove nodes without placing their pods. Stays applied until the trial ends."""
        slowly = self.demands.drained_slowly(rows)
        for row in rows:
            self.relocation.remove(row, slowly)

    def packed_on_new_nodes(
        self, rows: Sequence[int], placed: Iterable[tuple[int, int, int]], left: Pods
    ) -> list[tuple[Pods, PlannedNode]] | UnplacedShapes:
        """Pack pods on new nodes, no costlier than Karpenter would, with all moves of the plan so far."""
        view, table = self.view, self.view.snapshot.shapes
        names = view.snapshot.names
        gone = {*np.flatnonzero(self.gone).tolist(), *rows}
        rest = self._so_far().without(names[row] for row in gone)
        overlay = rest.minus(
            PodPlacement(new_row, table[shape], pods)
            for shape, row, pods in placed
            if (new_row := rest.find(names[row])) is not None
        )
        shape_of = {f"{shape}/{number}": shape for shape, count in left.items() for number in range(count)}
        packing = pack_new_nodes(
            overlay,
            [PendingPod(name, table[shape]) for name, shape in shape_of.items()],
            view.pools.values(),
            view.offerings,
            daemons=view.daemons,
            usage=view.usage,
            unavailable=view.unavailable,
            options=PackOptions(
                existing=False, preferences="ignore", limits="exact", max_options=1, orders=CHEAPEST
            ),
        )
        if packing.left:
            why = "; ".join(show_pool(reason) for reason in packing.left[0].reasons[:2])
            message = f"{len(packing.left)} pods that depend on others do not fit, on new nodes either: {why}"
            return UnplacedShapes(Infeasible(ConsolidationReason.TOPOLOGY, message), tuple(left))
        return [(Counter(shape_of[pod] for pod in node.pods), node) for node in packing.nodes]

    def _so_far(self) -> Room:
        """The snapshot with every pod that the plan has moved; cached until it moves another."""
        overlay = self._overlay
        if overlay is None or overlay[0] != self.arrived:
            table = self.view.snapshot.shapes
            sent = [PodPlacement(row, table[shape], pods) for shape, row, pods in self.arrived]
            overlay = self._overlay = self.arrived.copy(), self.view.snapshot.minus(sent)
        return overlay[1]

    def verdict(self, rows: Iterable[int], destination_per_hour: float | None) -> MoveVerdict:
        sources = [
            ScoredNode(self.pool_of[row], self.view.machines[row].price_per_hour, float(self.costs[row]))
            for row in rows
        ]
        return score_sources(
            sources,
            destination_per_hour,
            self.policies,
            self.totals,
            tolerance=self.settings.tolerance,
            worth_per_hour=None if self.view.bill is None else self.worth(rows),
        )

    def worth(self, rows: Iterable[int]) -> float:
        """The fall of the bill without these nodes, after the plan so far.

        Under a contract it is not the sum of their prices.
        """
        bill = self.view.bill
        if bill is None:
            return sum(float(self.prices[row]) for row in rows)
        fewer = bill.without(self.fleet, (self.view.machines[row].billed for row in rows))
        return bill.beyond(self.fleet) - bill.beyond(fewer)

    def bill_key(self, rows: Iterable[int]) -> float:
        """What else the worth depends on; constant without a contract."""
        return 0.0 if self.view.bill is None else self.worth(rows)

    def may_delete(self, rows: Iterable[int]) -> bool:
        """Whether settings and pools allow removing these nodes without a replacement."""
        rules = (self.judged.rules.get(self.pool_of[row]) for row in rows)
        return self.settings.delete and all(own is None or own.settings.delete for own in rules)

    def accept(
        self, draft: CandidateMove, *, arrived_elsewhere: Iterable[tuple[int, int, int]] | None = None
    ) -> None:
        """Accept the draft that is applied to the relocation.

        `arrived_elsewhere`: all placed pods, if that is more than the pods of the draft.
        """
        if not self.relocation.expects_new:
            self.expect_new(draft.new)
        self.relocation.commit()
        if self.stage not in self._kept_stages:
            self._tried.pop(self.stage, None)
        self.stage = self._next_stage.setdefault((self.stage, draft), len(self._next_stage) + 1)
        for row in draft.rows:
            self.gone[row] = True
        for shape, row, pods in draft.placed if arrived_elsewhere is None else arrived_elsewhere:
            self._receive(shape, ((row, pods),))
        for fitting, _ in draft.new:
            self.one_node.reserve(fitting)
        self.permission.take(Counter(self.pool_of[row] for row in draft.rows))
        if (bill := self.view.bill) is not None:
            fewer = bill.without(self.fleet, (self.view.machines[row].billed for row in draft.rows))
            coming = (bill.kind_of(fitting.pool, fitting.options(1)[0]) for fitting, _ in draft.new)
            self.fleet = bill.with_more(fewer, coming)

    def expect_new(self, new: Iterable[tuple[FittingTypes, Pods]]) -> None:
        """Count the pods of new nodes in their zones until the trial ends."""
        for fitting, pods in new:
            zones = fitting.state.requirements.get(ZONE)
            if zones is not None and not zones.complement and len(zones.values) == 1:
                self.relocation.add_new(pods, next(iter(zones.values)))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo everything that is relocated within, unless a move is accepted."""
        mark, stage = self.relocation.mark(), self.stage
        yield
        if self.stage == stage:
            self.relocation.undo(mark)

    def save(self) -> PlanningMark:
        self._kept_stages.add(self.stage)
        return PlanningMark(
            self.stage,
            self.relocation.save(),
            self.gone.copy(),
            self.receives.copy(),
            len(self.arrived),
            self.one_node.limits(),
            self.permission.copy(),
            self.fleet,
        )

    def rewind(self, saved: PlanningMark) -> None:
        self.stage = saved.stage
        self.relocation.rewind(saved.relocation)
        self.gone, self.receives = saved.gone.copy(), saved.receives.copy()
        del self.arrived[saved.arrived :]
        self.tries_left = BOUND_TRIES_MAX
        self.one_node.restore(saved.limits)
        self.permission = saved.permission.copy()
        self.fleet = saved.fleet

    def open_candidates(self) -> Int64s:
        """Candidates that may still be removed: not removed yet, and without received pods."""
        rows = self.candidates
        left = rows[~self.gone[rows] & ~self.receives[rows]]
        candidates: Int64s = left[np.argsort(self.turn[left])]
        return candidates

    def by_name(self, row: int) -> int:
        """The sort key of rows if nothing else decides."""
        return int(self.turn[row])
