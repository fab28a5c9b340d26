"""Answers whether replicas of a workload can run: now, after a scale-up, or never, and why not.

The plugins are those of the estimator's answer, called twice: how many fit at most, and what it takes to hold
the requested number. `karpool capacity` renders the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from operator import or_

from karpool.cluster.aspects import NO_ASPECTS, Aspect
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.interface import (
    EXISTING_NODES,
    UNLIMITED,
    CapacityPart,
    Estimate,
    EstimateCode,
    MergedEstimate,
    PluginRole,
    aspects_of,
    no_opinion,
)
from karpool.estimator.plugins.node_autoscaler import CapacityProvider, NodeAutoscalerEstimator, ProvidesSets
from karpool.estimator.plugins.resource_quota import ResourceQuotaEstimator
from karpool.estimator.question import EstimateQuestion
from karpool.estimator.serving.explain import explanation
from karpool.model.infeasible import Infeasible
from karpool.packing.fit_reasons import CLAIMS_UNKNOWN, FitReason


class CapacityVerdict(StrEnum):
    NOW = "fits now"
    AFTER_SCALE_UP = "fits after scale-up"
    NO = "does not fit"
    CANNOT_TELL = CLAIMS_UNKNOWN
    UNTOLD = "cannot tell"  # for another reason, which the remarks give


class PlaceOutlook(StrEnum):
    """What one place means for the workload."""

    NOW = "now"
    AFTER_SCALE_UP = "after scale-up"
    NOT_NOW = "not now"
    NEVER = "never"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class CapacityPlace:
    """`replicas` of the requested ones go there; `room` is the maximum."""

    name: str
    outlook: PlaceOutlook
    replicas: int
    room: int
    nodes: int = 0
    instance_types: tuple[str, ...] = ()
    price_per_hour: float | None = None
    reasons: tuple[str, ...] = ()
    list_price_per_hour: float | None = None  # if it differs: contracts, overlays


@dataclass(frozen=True, slots=True)
class CapacityReport:
    verdict: CapacityVerdict
    wanted: int
    most: int  # maximum number of replicas; UNLIMITED: no known limit
    places: tuple[CapacityPlace, ...]
    refusals: tuple[Infeasible[FitReason], ...] = ()
    limits: tuple[str, ...] = ()  # other limits that allow fewer than requested
    remarks: tuple[str, ...] = ()

    @property
    def is_unknown(self) -> bool:
        return self.verdict in (CapacityVerdict.CANNOT_TELL, CapacityVerdict.UNTOLD)

    @property
    def new_nodes(self) -> int:
        return sum(place.nodes for place in self.places)

    @property
    def price_per_hour(self) -> float | None:
        """The price of the new nodes; None without new nodes, or if one price is unknown."""
        return _sum(place.price_per_hour for place in self.places if place.nodes)

    @property
    def list_price_per_hour(self) -> float | None:
        return _sum(place.list_price_per_hour for place in self.places if place.nodes)


def _sum(prices: Iterable[float | None]) -> float | None:
    """None if empty, or if one price is unknown."""
    all_prices = list(prices)
    priced = [price for price in all_prices if price is not None]
    return sum(priced) if priced and len(priced) == len(all_prices) else None


class CapacityAnalyzer:
    """The plugins of one cluster. The snapshot of a question must include the `aspects`."""

    def __init__(self, providers: Sequence[CapacityProvider]) -> None:
        self._providers = tuple(providers)
        self._quota = ResourceQuotaEstimator(enabled=True)
        self._framework = Framework((NodeAutoscalerEstimator(self._providers), self._quota))

    @property
    def aspects(self) -> Aspect:
        return reduce(or_, map(aspects_of, self._framework.plugins), NO_ASPECTS)

    def answer(
        self, question: EstimateQuestion, wanted: int, exclusive: Sequence[str] = ()
    ) -> CapacityReport:
        """`exclusive` are volume claims that all replicas share, and that only one pod at a time may use."""
        outcome = self._framework.run_trusted(question)
        at_once = 1 if exclusive else UNLIMITED
        plans = self._plans(question, min(wanted, at_once))
        planned = _by_name(part for plan in plans for part in plan.parts)
        existing = min(question.existing, at_once)
        refusals = explanation(question, outcome).refusals
        # An unknown number of devices, now or on a new node, does not mean that there are none.
        claims = any(shape.resource_claims for shape in question.shapes)
        dra = question.room.dra
        unknown = claims and (
            outcome.code is EstimateCode.UNKNOWN or dra is None or not dra.stock.has_devices
        )
        places = [
            CapacityPlace(
                EXISTING_NODES,
                PlaceOutlook.NOW
                if existing
                else PlaceOutlook.CANNOT_TELL
                if unknown
                else PlaceOutlook.NOT_NOW
                if _may_pass(refusals)
                else PlaceOutlook.NEVER,
                min(existing, wanted),
                existing,
            )
        ]
        beyond = [part for part in outcome.parts if part.name != EXISTING_NODES]
        places += (_place(part, planned.get(part.name), unknown=claims) for part in beyond)
        held = sum(place.replicas for place in places)
        limits = tuple(_limits(outcome, wanted))
        if wanted > at_once:
            limits += (f"{', '.join(exclusive)} may be used by one pod at a time, not by {wanted}",)
        # Unknown is not "none": the existing part fits, whatever could be launched.
        is_untold = unknown or outcome.code is EstimateCode.UNKNOWN
        fits = held >= wanted and not limits
        verdict = (
            CapacityVerdict.CANNOT_TELL
            if not fits and (unknown or (claims and beyond))
            else CapacityVerdict.UNTOLD
            if not fits and is_untold and not limits
            else CapacityVerdict.NO
            if not fits
            else CapacityVerdict.NOW
            if existing >= wanted
            else CapacityVerdict.AFTER_SCALE_UP
        )
        remarks = () if fits else tuple(reason for plan in plans for reason in plan.reasons)
        most = min(max(outcome.answer, existing if is_untold else 0), at_once)
        return CapacityReport(verdict, wanted, most, tuple(places), refusals, limits, remarks)

    def _plans(self, question: EstimateQuestion, wanted: int) -> list[Estimate]:
        """Ask providers in turn: what one serves is not requested from the next."""
        plans: list[Estimate] = []
        left = wanted
        for provider in self._providers:
            plan = _planned_sets if question.for_sets else _planned
            planned = plan(provider, question, left)
            if planned.code is EstimateCode.SUCCESS:
                left -= sum(part.amount for part in planned.parts)
                plans.append(planned)
            elif planned.code is EstimateCode.UNKNOWN:  # it says why
                plans.append(planned)
        return plans


def _planned(provider: CapacityProvider, question: EstimateQuestion, wanted: int) -> Estimate:
    plan = getattr(provider, "plan", None)
    estimate: Estimate = plan(question, wanted) if plan is not None else provider.estimate(question)
    return estimate


def _planned_sets(provider: CapacityProvider, question: EstimateQuestion, wanted: int) -> Estimate:
    """Sets beyond those on existing nodes; which machines they would share is not reported."""
    if not isinstance(provider, ProvidesSets):
        return no_opinion(f"{provider.name} does not count component sets")
    estimate = provider.estimate_components(question)
    left = max(wanted - question.existing, 0)
    parts = []
    for part in estimate.parts:
        parts.append(replace(part, amount=min(part.amount, left)))
        left -= parts[-1].amount
    return replace(estimate, parts=tuple(parts))


def _by_name(parts: Iterable[CapacityPart]) -> dict[str, CapacityPart]:
    parts_by_name: dict[str, CapacityPart] = {}
    for part in parts:
        earlier = parts_by_name.get(part.name)
        parts_by_name[part.name] = (
            part if earlier is None else replace(earlier, amount=earlier.amount + part.amount)
        )
    return parts_by_name


def _place(part: CapacityPart, planned: CapacityPart | None, *, unknown: bool) -> CapacityPlace:
    outlook = PlaceOutlook.NOT_NOW if part.may_pass else PlaceOutlook.NEVER
    if unknown:
        outlook = PlaceOutlook.CANNOT_TELL
    if part.amount:
        outlook = PlaceOutlook.AFTER_SCALE_UP
    used = planned if planned is not None and planned.amount else CapacityPart(part.name, 0)
    return CapacityPlace(
        part.name,
        outlook,
        used.amount,
        part.amount,
        used.nodes,
        used.instance_types,
        used.price_per_hour,
        part.reasons,
        used.list_price_per_hour,
    )


def _limits(outcome: MergedEstimate, wanted: int) -> Iterable[str]:
    for verdict in outcome.verdicts:
        estimate = verdict.estimate
        if (
            verdict.role is PluginRole.LIMIT
            and estimate.code in (EstimateCode.SUCCESS, EstimateCode.UNSCHEDULABLE)
            and estimate.value < wanted
        ):
            why = f" ({'; '.join(estimate.reasons)})" if estimate.reasons else ""
            yield f"{verdict.plugin} allows {estimate.value} of {wanted}{why}"


def _may_pass(refusals: Iterable[Infeasible[FitReason]]) -> bool:
    """Whether a pod that is in the way could go."""
    return any(refusal.resolvable for refusal in refusals)
