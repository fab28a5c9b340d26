"""Caches the plan of a cluster: searches again only if something that decides has changed.

A plan depends on a view, on settings, and on the eligibility of nodes and the allowance of pools at that
moment; time has no other influence. If all of these are unchanged, so is the plan, except for its timestamp.
A plan that a deadline cut short is never reused.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from karpool.cluster.nodes.state_node import StateNode
from karpool.cluster.pods.disruption_store import PodDisruptionTable
from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.planning.planner import Planner, permission_now
from karpool.consolidation.planning.warm_search import LastSearch
from karpool.consolidation.policy.budgets import DisruptionAllowance
from karpool.consolidation.policy.candidates import CandidateNodes, find_candidates
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ClusterView
from karpool.model.kubernetes.pod_shape import PodShape

# Warm searches in a row before a full one, so that what warm searches miss does not add up.
WARM_MAX = 10
_DECIDES_NEW_NODES = ("pools", "pool_objects", "broken_pools", "daemons", "usage", "unavailable", "bill")


@dataclass(frozen=True, slots=True)
class _Last:
    view: ClusterView
    settings: PlanSettings
    judged: CandidateNodes
    permission: DisruptionAllowance  # before any move was accepted
    prices: int  # version of the catalogue, which learns prices
    plan: ConsolidationPlan
    searched: LastSearch | None


class PlanCache:
    def __init__(self) -> None:
        self.searches = 0
        self.warm = 0  # searches since the last full one
        self._last: _Last | None = None

    def plan(
        self,
        view: ClusterView,
        settings: PlanSettings,
        now: float,
        *,
        elapsed: Callable[[], float] | None = None,
    ) -> ConsolidationPlan:
        """Return what `plan_consolidation` would return."""
        judged = find_candidates(view, settings, now)
        permission = permission_now(view, judged, settings, now)
        last = self._last
        if (
            last is not None
            and settings == last.settings
            and view.offerings.version == last.prices
            and permission == last.permission
            and same(judged, last.judged)
            and same(view, last.view)
        ):
            return replace(last.plan, made_at=now)
        self.searches += 1
        before, prices = permission.copy(), view.offerings.version
        usable = self._usable(view, settings, prices)
        self._last = None  # a failed search leaves its shared state half used
        planner = Planner(
            view,
            settings,
            now,
            elapsed,
            judged=judged,
            permitted=permission,
            last=usable,
        )
        plan = planner.plan()
        self.warm = self.warm + 1 if planner.is_warm else 0
        self._last = (
            None
            if plan.not_looked_at
            else _Last(view, settings, judged, before, prices, plan, planner.searched)
        )
        return plan

    def _usable(self, view: ClusterView, settings: PlanSettings, prices: int) -> LastSearch | None:
        """The last search, if only nodes, pods, budgets and time may have changed since."""
        last = self._last
        if (
            last is None
            or self.warm >= WARM_MAX
            or settings != last.settings
            or prices != last.prices
            or view.offerings is not last.view.offerings
            or view.snapshot.shapes is not last.view.snapshot.shapes
            or view.snapshot.shapes.where("claims devices", _claims_devices).any()
            or not all(_equal(getattr(view, name), getattr(last.view, name)) for name in _DECIDES_NEW_NODES)
        ):
            return None
        return last.searched


def _claims_devices(shape: PodShape) -> bool:
    """Whether the shape claims devices: the devices of new nodes are predicted from existing nodes."""
    return bool(shape.resource_claims or shape.extended_asks)


def same(one: Any, other: Any) -> bool:
    """Whether two views, or parts of them, are equal, field by field."""
    return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray):
        # NaN (an unknown price) equals NaN.
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    if isinstance(one, PodDisruptionTable | StateNode):
        return type(one) is type(other) and same(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
