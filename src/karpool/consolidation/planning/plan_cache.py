"""Plans of one cluster, one after another: searched again only when something that decides has changed.

A plan is made from a view, settings, and what is judged of nodes and granted to pools at
that moment; time has no other way in. Where all of these are as they were, so is the
plan, but for when it was made. A plan that a deadline cut short is never given again.
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

# Searches that begin with what the one before found, until one is made from nothing: what each might miss
# does not add up for longer than that.
WARM_MAX = 10
_DECIDES_NEW_NODES = ("pools", "pool_objects", "broken_pools", "daemons", "usage", "unavailable", "bill")


@dataclass(frozen=True, slots=True)
class _Last:
    view: ClusterView
    settings: PlanSettings
    judged: CandidateNodes
    permission: DisruptionAllowance  # before anything was taken
    prices: int  # version of the catalogue, which learns
    plan: ConsolidationPlan
    searched: LastSearch | None


class PlanCache:
    def __init__(self) -> None:
        self.searches = 0
        self.warm = 0  # searches since the last whole one
        self._last: _Last | None = None

    def plan(
        self,
        view: ClusterView,
        settings: PlanSettings,
        now: float,
        *,
        elapsed: Callable[[], float] | None = None,
    ) -> ConsolidationPlan:
        """What `make_plan` gives."""
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
        self._last = None  # a search that fails leaves nothing behind: what it shares is half used
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
        """The last search, where only nodes, pods, budgets and time may have changed since."""
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
    """What drivers would publish on new nodes is read from the nodes that are there."""
    return bool(shape.resource_claims or shape.extended_asks)


def same(one: Any, other: Any) -> bool:
    """Whether two views, or parts of them, say the same, field by field."""
    return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray):
        # What is not a number, an unknown price, is so in both.
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    if isinstance(one, PodDisruptionTable | StateNode):
        return type(one) is type(other) and same(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
