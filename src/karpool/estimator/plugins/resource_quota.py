"""ResourceQuotaEstimator: what the namespace's ResourceQuotas still admit.

Different from Karmada on purpose: an over-used quota admits nothing (there it may answer -1, which
callers ignore), and a request without a namespace is not held against the quotas of all namespaces.
"""

from collections.abc import Iterable, Mapping, Sequence

from karpool.cluster.aspects import NO_ASPECTS, Aspect
from karpool.estimator.plugins.interface import UNLIMITED, Estimate, EstimateCode, PluginRole, no_opinion
from karpool.estimator.question import EstimateQuestion
from karpool.model.karmada.replica_requirements import Component, ReplicaRequirements
from karpool.model.kubernetes.resource_quota import Matching, QuotaHeadroom, is_counted_by_quotas
from karpool.wire.requests import ComponentSetsRequest

NAME = "ResourceQuotaEstimator"
NO_CONSTRAINTS = f"{NAME} found no quota constraints"


class ResourceQuotaEstimator:
    name = NAME
    role = PluginRole.LIMIT

    def __init__(self, *, enabled: bool = True, matching: Matching = "any") -> None:
        self.aspects = Aspect.QUOTAS if enabled else NO_ASPECTS
        self._enabled = enabled
        self._matching: Matching = matching

    def estimate(self, question: EstimateQuestion) -> Estimate:
        if not self._enabled:
            return no_opinion(f"{NAME} is disabled")
        request = question.request
        assert not isinstance(request, ComponentSetsRequest)
        wanted = request.requirements
        if wanted is None or not wanted.namespace:
            return _unconstrained
        assumed = _assumed(question, wanted.namespace)
        allowed = UNLIMITED
        for quota in question.snapshot.quotas(wanted.namespace):
            if self._applies(quota, wanted):
                allowed = min(allowed, _admits(quota, dict(wanted.shape.requests), self._of(quota, assumed)))
        if not allowed:
            return Estimate(0, EstimateCode.UNSCHEDULABLE, (f"zero replica is estimated by {NAME}",))
        return _unconstrained if allowed == UNLIMITED else Estimate(allowed)

    def estimate_components(self, question: EstimateQuestion) -> Estimate:
        if not self._enabled:
            return no_opinion(f"{NAME} is disabled")
        request = question.request
        assert isinstance(request, ComponentSetsRequest)
        if not request.components:
            return Estimate(UNLIMITED, reasons=(f"{NAME} received empty components list",))
        if not request.namespace:
            return Estimate(UNLIMITED)
        assumed = _assumed(question, request.namespace)
        allowed = UNLIMITED
        for quota in question.snapshot.quotas(request.namespace):
            concerned = [component for component in request.components if self._concerns(quota, component)]
            if concerned:
                allowed = min(allowed, _admits(quota, _total(concerned), self._of(quota, assumed)))
        if not allowed:
            return Estimate(0, EstimateCode.UNSCHEDULABLE, (f"zero component sets estimated by {NAME}",))
        return _unconstrained if allowed == UNLIMITED else Estimate(allowed)

    def _applies(self, quota: QuotaHeadroom, wanted: ReplicaRequirements) -> bool:
        return quota.applies_to(wanted.priority_class_name, self._matching)

    def _concerns(self, quota: QuotaHeadroom, component: Component) -> bool:
        if not quota.selectors:
            return True
        return component.requirements is not None and self._applies(quota, component.requirements)

    def _of(self, quota: QuotaHeadroom, assumed: Sequence[Component]) -> Mapping[str, int]:
        return _total([component for component in assumed if self._concerns(quota, component)])


_unconstrained = Estimate(UNLIMITED, reasons=(NO_CONSTRAINTS,))


def _assumed(question: EstimateQuestion, namespace: str) -> list[Component]:
    return [
        component
        for workload in question.assumed
        if workload.namespace == namespace
        for component in workload.components
        if component.requirements is not None
    ]


def _total(components: Iterable[Component]) -> dict[str, int]:
    total: dict[str, int] = {}
    for component in components:
        if component.requirements is not None:
            for name, units in component.requirements.shape.requests:
                if is_counted_by_quotas(name):
                    total[name] = total.get(name, 0) + units * component.replicas
    return total


def _admits(quota: QuotaHeadroom, wanted: Mapping[str, int], taken: Mapping[str, int]) -> int:
    """How many times `wanted` fits into what is left; UNLIMITED when the quota does not mind."""
    free = {name: units - taken.get(name, 0) for name, units in quota.free.items()}
    if any(free[name] < 0 < taken.get(name, 0) for name in free):
        return 0
    fits = [max(free[name], 0) // units for name, units in wanted.items() if name in free and units > 0]
    return min((UNLIMITED, *fits))
