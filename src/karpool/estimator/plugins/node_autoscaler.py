"""NodeAutoscalerEstimator: existing nodes, and those an autoscaler could still create.

Capacity providers, one per autoscaler, say what could be created. A provider that is not installed (no CRDs,
no ConfigMap) has no opinion and adds nothing. Together with NodeResourceEstimator existing nodes are still
counted once: both name them as the same part.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Protocol, runtime_checkable

from karpool.cluster.aspects import NO_ASPECTS, Aspect
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.plugins.interface import (
    UNLIMITED,
    CapacityPart,
    Estimate,
    EstimateCode,
    PluginRole,
    aspects_of,
    no_opinion,
    watches_of,
)
from karpool.estimator.plugins.node_resource import existing_nodes, has_components
from karpool.estimator.question import EstimateQuestion
from karpool.kube.watched import WatchedKind
from karpool.model.resources import Resources, total

NAME = "NodeAutoscalerEstimator"


class CapacityProvider(Protocol):
    """Says what one autoscaler could add to existing nodes.

    `estimate` answers for replicas, `estimate_components` (if it exists) for sets. Its parts are named
    `provider/pool`. `question.promised` are assumed replicas without an existing node that are not pending
    pods: after the pending pods they take potential nodes first. May have `aspects` and `watches`, like a
    plugin.
    """

    @property
    def name(self) -> str: ...

    def estimate(self, question: EstimateQuestion, /) -> Estimate: ...


@runtime_checkable
class ProvidesSets(Protocol):
    def estimate_components(self, question: EstimateQuestion, /) -> Estimate: ...


@runtime_checkable
class HasCeiling(Protocol):
    """A source or provider of future nodes that gives an upper bound on their capacity."""

    def ceiling(self, snapshot: Snapshot, /) -> Resources: ...


class NodeAutoscalerEstimator:
    name = NAME
    role = PluginRole.SOURCE
    sees_new_nodes = True

    def __init__(self, providers: Sequence[CapacityProvider]) -> None:
        self.providers = tuple(providers)

    @property
    def aspects(self) -> Aspect:
        return reduce(or_, map(aspects_of, self.providers), NO_ASPECTS)

    @property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        return tuple(watch for provider in self.providers for watch in watches_of(provider))

    def estimate(self, question: EstimateQuestion) -> Estimate:
        return self._sum(question, [provider.estimate for provider in self.providers])

    def estimate_components(self, question: EstimateQuestion) -> Estimate:
        if not has_components(question):
            return no_opinion(f"{NAME} received empty components list")
        asked = [
            provider.estimate_components for provider in self.providers if isinstance(provider, ProvidesSets)
        ]
        total = self._sum(question, asked)
        if total.code is EstimateCode.SUCCESS and not total.value:
            return Estimate(
                0, EstimateCode.UNSCHEDULABLE, ("no enough resources", *total.reasons), total.parts
            )
        return total

    def ceiling(self, snapshot: Snapshot) -> Resources:
        """The upper bound of what providers could add of every resource; one that cannot say adds nothing."""
        ceilings = [provider.ceiling for provider in self.providers if isinstance(provider, HasCeiling)]
        return total(ceiling(snapshot) for ceiling in ceilings)

    def _sum(
        self, question: EstimateQuestion, asked: Sequence[Callable[[EstimateQuestion], Estimate]]
    ) -> Estimate:
        parts: list[CapacityPart] = [existing_nodes(question)]
        reasons: list[str] = []
        for ask in asked:
            answer = ask(question)
            reasons += answer.reasons
            if answer.code in (EstimateCode.ERROR, EstimateCode.UNKNOWN):
                return Estimate(0, answer.code, tuple(reasons), (*parts, *answer.parts))
            if answer.code is not EstimateCode.NOOPERATION:
                parts += answer.parts or (CapacityPart(f"provider {len(parts)}", answer.value),)
        total = sum(part.amount for part in parts)
        return Estimate(min(total, UNLIMITED), reasons=tuple(reasons), parts=tuple(parts))
