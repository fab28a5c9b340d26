"""Objections to a possible move: score, kind, replacement rules, bill, budgets."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from karpool.cluster.market.fleet_bill import FleetBill
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.state.candidate_move import CandidateMove
from karpool.model.contracts.contract import BilledKind, Fleet
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import SPOT
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.packing.relocation.single_node import LAUNCH_ORDER, FittingTypes

if TYPE_CHECKING:
    from karpool.consolidation.state.planning_state import PlanningState

Why = Infeasible[ConsolidationReason]
# Karpenter launches from at most this many types.
TYPES_MAX = 60
# A smaller difference is rounding, not a saving: a thousandth of a cent in a month.
LEAST_SAVING = 1e-8


def raises_the_bill(state: "PlanningState", draft: CandidateMove) -> Iterable[Why]:
    """Object if the bill may not fall: for every type that may be launched, and whether or not other clusters
    launch what they intend.
    """
    bill = state.view.bill
    if bill is None:
        return
    leaving = [state.view.machines[row].billed for row in draft.rows]
    coming = [_may_be_billed_as(state, fitting) for fitting, _ in draft.new]
    if bill.unheard:
        touched = {kind for kind in (*leaving, *(kind for kinds in coming for kind in kinds)) if kind}
        if any(map(bill.contract.is_about, touched)):
            names = ", ".join(bill.unheard)
            message = f"the use of the contract by {names} is unknown, so the change of the bill is unknown"
            yield Infeasible(ConsolidationReason.BILL_DOES_NOT_FALL, message)
            return
    fleets = [state.fleet, bill.with_more_of(state.fleet, bill.intents)] if bill.intents else [state.fleet]
    for fleet in fleets:
        yield from _does_not_fall(bill, fleet, leaving, coming)


def _does_not_fall(
    bill: FleetBill, fleet: Fleet, leaving: Iterable[BilledKind | None], coming: Sequence[set[BilledKind]]
) -> Iterable[Why]:
    fewer = bill.without(fleet, leaving)
    before, without = bill.beyond(fleet), bill.beyond(fewer)
    spent = 0.0
    for kinds in coming:
        # A machine may cost more than its rate, if it takes the commitment of a costlier one.
        costs = [(bill.beyond(bill.with_more(fewer, (kind,))) - without, kind.rate) for kind in kinds]
        # Machines compete for commitments: several new ones count at their full rates.
        spent += max((added if len(coming) == 1 else max(added, rate) for added, rate in costs), default=inf)
    if before - without - spent <= LEAST_SAVING:
        message = (
            f"it would save ${before - without:.4f} and cost up to ${spent:.4f} per hour: "
            "with what was contracted the bill does not fall"
        )
        yield Infeasible(ConsolidationReason.BILL_DOES_NOT_FALL, message)


def _may_be_billed_as(state: "PlanningState", fitting: FittingTypes) -> set[BilledKind]:
    """All billed kinds that a launch may have; zones matter only if prices or commitments differ by zone."""
    bill, offer = state.view.bill, fitting.state.offer
    assert bill is not None
    kinds: set[BilledKind] = set()
    for option in fitting.options(TYPES_MAX):
        stock = fitting.state.stock[offer.names.index(option.instance_type)]
        capacity_types = [
            kind
            for kind in LAUNCH_ORDER
            if kind in offer.capacity_types and stock[:, offer.capacity_types.index(kind)].any()
        ]
        for zone in np.flatnonzero(stock.any(axis=1)).tolist():
            for capacity_type in capacity_types:
                if stock[zone, offer.capacity_types.index(capacity_type)]:
                    place = LaunchOption(option.instance_type, offer.zones[zone], capacity_type, None)
                    kind = bill.kind_of(fitting.pool, place)
                    if kind is not None:
                        kinds.add(kind)
    return kinds


def objections_to(state: "PlanningState", draft: CandidateMove, reason: DisruptionReason) -> tuple[Why, ...]:
    """The objections to a possible move: the score first, then savings, then budgets."""
    objections: list[Infeasible[ConsolidationReason]] = []
    for pool in draft.verdict.pools:
        if pool.score is not None and not pool.score.approved:
            score = pool.score
            message = (
                f"score {score.score:.2f} < threshold {score.threshold:.2f} of nodepool {pool.pool} "
                f"(k: {pool.policy.k}, savings {score.savings_fraction:.1%}, "
                f"disruption {score.disruption_fraction:.1%})"
            )
            objections.append(Infeasible(ConsolidationReason.SCORE, message, f"nodepool {pool.pool}"))
    objections += _wrong_kind(state, draft)
    objections += _wrong_replacement(state, draft)
    objections += raises_the_bill(state, draft)
    objections += _too_small(state, draft)
    objections += state.permission.refusal(reason, Counter(state.pool_of[row] for row in draft.rows))
    return tuple(objections)


def _wrong_kind(state: "PlanningState", draft: CandidateMove) -> Iterable[Why]:
    kind = "replace" if draft.new else "delete"
    if not getattr(state.settings, kind):
        yield Infeasible(ConsolidationReason.METHOD_DISABLED, f"moves that {kind} nodes are switched off")
    for pool in dict.fromkeys(state.pool_of[row] for row in draft.rows):
        rules = state.judged.rules.get(pool)
        if rules is not None and not getattr(rules.settings, kind):
            yield Infeasible(
                ConsolidationReason.METHOD_DISABLED,
                f"nodepool {pool} has moves that {kind} nodes switched off",
                f"nodepool {pool}",
            )


def _wrong_replacement(state: "PlanningState", draft: CandidateMove) -> Iterable[Why]:
    """Apply the replacement rules to exactly these nodes, whatever larger group they were found in."""
    if not draft.new:
        return
    on_spot = all(state.kind(row).capacity_type == SPOT for row in draft.rows)
    if on_spot and not state.settings.spot_to_spot and any(fitting.may_be(SPOT) for fitting, _ in draft.new):
        yield Infeasible(ConsolidationReason.SPOT_TO_SPOT, "replacing spot by spot is switched off")
    if state.view.bill is None:
        worst = sum(float(fitting.worst[fitting.types].max(initial=0.0)) for fitting, _ in draft.new)
        worth = state.worth(draft.rows)
        if worst > worth + LEAST_SAVING:
            yield Infeasible(
                ConsolidationReason.NOT_CHEAPER,
                f"the new nodes may cost ${worst:.4f} per hour, the old ones cost ${worth:.4f}",
            )


def _too_small(state: "PlanningState", draft: CandidateMove) -> Iterable[Why]:
    settings, savings = state.settings, draft.savings
    price = sum(float(state.prices[row]) for row in draft.rows)
    if savings < settings.min_savings_per_hour:
        least = settings.min_savings_per_hour
        yield Infeasible(
            ConsolidationReason.SMALL_SAVING,
            f"it saves ${savings:.4f} per hour, less than the minimum of ${least:.4f}",
        )
    if price > 0 and savings / price < settings.min_savings_fraction:
        least = settings.min_savings_fraction
        yield Infeasible(
            ConsolidationReason.SMALL_SAVING,
            f"it saves {savings / price:.1%} of the price, less than the minimum of {least:.1%}",
        )
