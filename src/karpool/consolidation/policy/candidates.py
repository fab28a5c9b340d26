"""Finds the nodes that may be removed as empty, those that may be consolidated, and why the others stay.

It collects the facts of nodes for the rules of `eligibility`. Karpool's own rules (young nodes, starting
pods, utilisation) come after those. It also decides which nodes may receive pods.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from karpool.cluster.nodes.state_node import NodeTraits, StateNode
from karpool.cluster.pods.disruption_store import (
    ACTIVE,
    BARE_SHARE,
    CLAIMING,
    EVICTABLE,
    NONE,
    RESCHEDULABLE,
    SEVERAL,
    STARTING,
    UNREADY,
)
from karpool.consolidation.policy.eligibility import (
    DisruptionMethod,
    EligibilityFacts,
    is_under_window,
    why_not_candidate,
    why_not_method,
)
from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.policy import ConsolidationPolicy, policy_of
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.scoring import is_empty
from karpool.consolidation.policy.settings import PlanSettings, PoolSettings, pool_settings
from karpool.consolidation.view import ClusterView
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import DEFAULT_DISRUPTION
from karpool.model.resources import CPU, MEMORY
from karpool.packing.dra.pod_claims import finds_devices_anew
from karpool.packing.tables.columns import Bools, Int64s


class _Signals(NamedTuple):
    """Inputs of the rules besides node and claim. Together with the marks they determine the facts."""

    empty: bool
    in_queue: bool
    nominated: bool
    quiet: bool
    protecting_pod: str = ""
    held_pod: str = ""
    held_by: str = ""
    claiming_pod: str = ""
    held_claim: str = ""
    unreadable_claim: str = ""
    unreadable_pod: str = ""
    bare_share: bool = False  # the protecting pod holds a GPU share and has no owner


@dataclass(frozen=True, slots=True)
class PoolRules:
    """A pool's settings and policy, read once; `problem` closes it."""

    settings: PoolSettings = field(default_factory=PoolSettings)
    policy: ConsolidationPolicy | None = None
    wait: str = "0s"
    wait_empty: str = "0s"
    uses_condition: bool = True  # Karpenter's own condition must be true
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CandidateNodes:
    """The nodes that may be removed as empty, those that may be consolidated, and the reasons of the others.

    `targets` are rows that may receive pods.
    """

    empty: Int64s
    candidates: Int64s
    held: Mapping[int, tuple[Infeasible[ConsolidationReason], ...]]
    targets: Bools
    rules: Mapping[str, PoolRules]
    stray: tuple[KeptNode, ...] = ()  # claims without a node

    @property
    def policies(self) -> dict[str, ConsolidationPolicy]:
        return {name: rules.policy for name, rules in self.rules.items() if rules.policy is not None}


def read_pools(view: ClusterView, settings: PlanSettings) -> dict[str, PoolRules]:
    """Read the rules of all pools. A pool that cannot be read is closed; the others are not."""
    rules: dict[str, PoolRules] = {}
    for name, pool in view.pool_objects.items():
        if name in view.broken_pools:
            rules[name] = PoolRules(problem=view.broken_pools[name])
            continue
        try:
            own = pool_settings(pool)
            policy = policy_of(pool, settings.override)
            wait = own.consolidate_after or (pool.spec.disruption or DEFAULT_DISRUPTION).consolidate_after
            durations.seconds_or_never(wait)
        except Invalid as error:
            rules[name] = PoolRules(problem=str(error))
            continue
        rules[name] = PoolRules(
            own,
            policy,
            wait,
            own.consolidate_after_empty or wait,
            uses_condition=own.consolidate_after is None and own.consolidate_after_empty is None,
        )
    return rules


def find_candidates(view: ClusterView, settings: PlanSettings, now: float) -> CandidateNodes:
    return _Judge(view, settings, now).judged()


class _Judge:
    def __init__(self, view: ClusterView, settings: PlanSettings, now: float) -> None:
        self._view, self._settings, self._now = view, settings, now
        self._rules = read_pools(view, settings)
        pods = view.pods
        active = (pods.flags & ACTIVE) != 0
        self._protecting = _first_by_row(view, active & (pods.protected_until > now))
        self._held = _first_by_row(view, self._held_pods())
        self._claiming = _first_by_row(view, self._tied_by_claims())
        self._starting = _first_by_row(
            view, (pods.flags & (STARTING | RESCHEDULABLE)) == STARTING | RESCHEDULABLE
        )
        last_event = np.zeros(view.snapshot.n)
        np.maximum.at(last_event, pods.rows, np.where(pods.since <= now, pods.since, 0.0))
        self._last_event: list[float] = last_event.tolist()
        self._use = _use(view)
        # Most nodes are alike: the rules are evaluated once for equal facts.
        self._known: dict[tuple[NodeTraits, _Signals], Infeasible[ConsolidationReason] | None] = {}

    def _held_pods(self) -> Bools:
        view, pods = self._view, self._view.pods
        none_allowed = np.array([budget.disruptions_allowed <= 0 for budget in view.budgets] or [False])
        frees = np.array([budget.frees_unready_pods for budget in view.budgets] or [False])
        number = np.maximum(pods.budget, 0)
        unready = (pods.flags & UNREADY) != 0
        one = (pods.budget >= 0) & none_allowed[number] & ~(frees[number] & unready)
        held: Bools = ((pods.flags & EVICTABLE) != 0) & (one | (pods.budget == SEVERAL))
        return held

    def _tied_by_claims(self) -> Bools:
        """Pods whose devices exist only on their node, or may do so."""
        view, pods = self._view, self._view.pods
        tied: Bools = (pods.flags & (CLAIMING | RESCHEDULABLE)) == CLAIMING | RESCHEDULABLE
        numbers = np.unique(pods.shapes[tied]).tolist()
        shapes = view.snapshot.shapes
        free = [number for number in numbers if finds_devices_anew(view.snapshot.dra, shapes[number])]
        return tied & ~np.isin(pods.shapes, free)

    def judged(self) -> CandidateNodes:
        view = self._view
        empty: list[int] = []
        candidates: list[int] = []
        held: dict[int, tuple[Infeasible[ConsolidationReason], ...]] = {}
        costs = view.node_costs.tolist()
        targets = np.ones(view.snapshot.n, dtype=np.bool_)
        for row, machine in enumerate(view.machines):
            signals = self._signals(row, machine, is_empty(costs[row]))
            # Pods are not moved to a reserved node, nor to one that may be repaired: a repair does not wait
            # for pods.
            takes_pods = not machine.reserved and not machine.ailment
            targets[row] = takes_pods and self._is_target(row, machine, signals.in_queue)
            key = machine.marks, signals
            if key not in self._known:
                self._known[key] = self._why(*key)
            why = self._known[key] or self._own_rules(row, machine, signals.empty)
            if why is not None:
                held[row] = (why,)
            else:
                (empty if signals.empty else candidates).append(row)
        return CandidateNodes(
            np.array(empty, dtype=np.int64),
            np.array(candidates, dtype=np.int64),
            held,
            targets,
            self._rules,
            tuple(self._stray()),
        )

    def _stray(self) -> Iterable[KeptNode]:
        for machine in self._view.claims_without_node:
            why = why_not_candidate(EligibilityFacts(pool=machine.pool, has_node=False))
            assert why is not None
            yield KeptNode(machine.name, machine.pool, machine.price_per_hour, 1.0, (why,))

    def _signals(self, row: int, machine: StateNode, empty: bool) -> _Signals:
        view, name = self._view, machine.name
        signals = _Signals(
            empty, name in view.in_flight, name in view.nominated, self._is_quiet(row, machine, empty)
        )
        protecting, held_pod, claiming = self._protecting[row], self._held[row], self._claiming[row]
        if claiming >= 0:
            signals = signals._replace(claiming_pod=view.pods.keys[claiming])
        if name in view.held_claims.by_node:
            signals = signals._replace(held_claim=view.held_claims.by_node[name])
        if machine.blocked:
            signals = signals._replace(unreadable_pod=view.first_unreadable.get(name, ""))
        if view.held_claims.may_be_held(name):
            signals = signals._replace(unreadable_claim=view.held_claims.unreadable)
        if protecting >= 0:
            signals = signals._replace(
                protecting_pod=view.pods.keys[protecting],
                bare_share=bool(view.pods.flags[protecting] & BARE_SHARE),
            )
        if held_pod >= 0:
            signals = signals._replace(held_pod=view.pods.keys[held_pod], held_by=self._held_by(held_pod))
        return signals

    def _why(self, marks: NodeTraits, signals: _Signals) -> Infeasible[ConsolidationReason] | None:
        facts = self._facts(marks, signals)
        method = DisruptionMethod.EMPTINESS if facts.empty else DisruptionMethod.CONSOLIDATION
        return why_not_candidate(facts, method) or why_not_method(facts, method)

    def _facts(self, marks: NodeTraits, signals: _Signals) -> EligibilityFacts:
        """The facts of any node with these marks and signals."""
        view, pool = self._view, marks.pool_label
        rules = self._rules.get(pool)
        types = view.offerings.catalogue_of(pool).types
        return EligibilityFacts(
            pool=pool,
            in_queue=signals.in_queue,
            managed=marks.managed,
            initialized=marks.initialized,
            deleting=marks.deleting,
            nominated=signals.nominated,
            unreadable_pods=marks.blocked,
            reserved=marks.reserved,
            do_not_disrupt=marks.do_not_disrupt,
            pool_exists=rules is not None,
            pool_sells=bool(types),
            pool_problem=rules.problem if rules is not None else "",
            protecting_pod=signals.protecting_pod,
            claiming_pod=signals.claiming_pod,
            held_claim=signals.held_claim,
            unreadable_claim=signals.unreadable_claim,
            unreadable_pod=signals.unreadable_pod,
            bare_share=signals.bare_share,
            held_pod=signals.held_pod,
            held_by=signals.held_by,
            is_static=pool in view.pools and view.pools[pool].is_static,
            instance_type=marks.instance_type,
            type_known=marks.instance_type in types,
            capacity_type=marks.capacity_type,
            zone=marks.zone,
            consolidation_disabled=rules is not None and self._wait(rules, signals.empty) == durations.NEVER,
            empty=signals.empty,
            moves_pods=rules is None or rules.policy is None or rules.policy.moves_pods,
            consolidatable=signals.quiet,
            drifted=marks.drifted,
            has_grace_period=marks.has_grace_period,
        )

    def _held_by(self, pod: int) -> str:
        pods, number = self._view.pods, int(self._view.pods.budget[pod])
        names = pods.several[pod] if number == SEVERAL else (self._view.budgets[number].name,)
        namespace = pods.keys[pod].partition("/")[0]  # a budget covers pods of its own namespace only
        return ", ".join(f"{namespace}/{name}" for name in names)

    @staticmethod
    def _wait(rules: PoolRules, empty: bool) -> str:
        return rules.wait_empty if empty else rules.wait

    def _is_quiet(self, row: int, machine: StateNode, empty: bool) -> bool:
        """Whether Karpenter's condition and the pods agree that the node is quiet: the condition may lag."""
        rules = self._rules.get(machine.marks.pool_label)
        if (
            machine.claim is None
            or rules is None
            or rules.problem
            or not self._settings.protect_young_sources
        ):
            return True
        if rules.uses_condition and not machine.marks.consolidatable:
            return False
        return not self._under_window(row, machine, self._wait(rules, empty))

    def _under_window(self, row: int, machine: StateNode, wait: str) -> bool:
        last = max(machine.last_pod_event_at, self._last_event[row])
        return is_under_window(wait, machine.initialized_at, last or None, self._now)

    def _is_target(self, row: int, machine: StateNode, in_flight: bool) -> bool:
        """Whether pods of other nodes may be moved to this node."""
        if machine.is_leaving or in_flight:
            return False
        if machine.claim is None:
            return not machine.marks.pool_label or machine.is_initialized
        if not machine.is_initialized:
            return False
        rules = self._rules.get(machine.pool)
        if rules is None or rules.problem:
            return True
        own = rules.settings.protect_young_targets
        if not (self._settings.protect_young_targets if own is None else own):
            return True
        return not self._under_window(row, machine, rules.wait)

    def _own_rules(self, row: int, machine: StateNode, empty: bool) -> Infeasible[ConsolidationReason] | None:
        settings = self._settings
        if buffer := self._view.unclear_buffers.get(machine.pool):
            message = f"an invalid buffer may need its capacity: {buffer}"
            return Infeasible(ConsolidationReason.BUFFER_UNREADABLE, message, f"nodepool {machine.pool}")
        if settings.min_age_seconds and machine.claim is not None:
            age = self._now - (machine.initialized_at or self._now)
            if age < settings.min_age_seconds:
                return Infeasible(
                    ConsolidationReason.YOUNG,
                    f"it is {age:.0f} s old, and the minimum age is {settings.min_age_seconds:g} s",
                )
        if machine.ailment and not empty:
            return Infeasible(
                ConsolidationReason.UNHEALTHY,
                f"its condition {machine.ailment}: node repair or its owner decides about it",
            )
        if settings.protect_starting_pods and self._starting[row] >= 0:
            pod = self._view.pods.keys[self._starting[row]]
            return Infeasible(
                ConsolidationReason.POD_STARTING, f"pod {pod} is still starting there", f"pod {pod}"
            )
        if settings.most_use is not None and not empty and self._use[row] > settings.most_use:
            used = f"{self._use[row]:.0%} of it are used, more than {settings.most_use:.0%}"
            return Infeasible(ConsolidationReason.WELL_USED, used)
        return None


def _first_by_row(view: ClusterView, chosen: Bools) -> list[int]:
    """By row: the first chosen pod; -1 if there is none."""
    first = np.full(view.snapshot.n, NONE, dtype=np.int64)
    pods = np.flatnonzero(chosen)[::-1]
    first[view.pods.rows[pods]] = pods
    rows: list[int] = first.tolist()
    return rows


def _use(view: ClusterView) -> list[float]:
    """By row: the larger requested share of CPU and memory."""
    snapshot = view.snapshot
    shares = []
    for name in (CPU, MEMORY):
        whole = snapshot.allocatable(name).astype(np.float64)
        shares.append(np.where(whole > 0, 1.0 - snapshot.free(name) / np.maximum(whole, 1.0), 0.0))
    most: list[float] = np.maximum(*shares).tolist()
    return most
