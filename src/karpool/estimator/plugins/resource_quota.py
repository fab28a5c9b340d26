"""ResourceQuotaEstimator: what the ResourceQuotas of the namespace still admit (`rooms.quota_limits`)."""

from karpool.cluster.aspects import NO_ASPECTS, Aspect
from karpool.estimator.plugins.interface import UNLIMITED, Estimate, EstimateCode, PluginRole, no_opinion
from karpool.estimator.question import EstimateQuestion
from karpool.model.kubernetes.resource_quota import Matching
from karpool.rooms.quota_limits import replicas_admitted, sets_admitted
from karpool.wire.requests import ComponentSetsRequest

NAME = "ResourceQuotaEstimator"
NO_CONSTRAINTS = f"{NAME} found no quota constraints"


class ResourceQuotaEstimator:
    name = NAME
    role = PluginRole.LIMIT

    def __init__(self, *, enabled: bool = True, matching: Matching = "any") -> None:
        self.aspects = Aspect.QUOTAS if enabled else NO_ASPECTS
        self.enabled = enabled
        self.matching: Matching = matching

    def estimate(self, question: EstimateQuestion) -> Estimate:
        if not self.enabled:
            return no_opinion(f"{NAME} is disabled")
        request = question.request
        assert not isinstance(request, ComponentSetsRequest)
        allowed = replicas_admitted(question.snapshot.quotas, request, question.assumed, self.matching)
        if not allowed:
            return Estimate(0, EstimateCode.UNSCHEDULABLE, (f"zero replica is estimated by {NAME}",))
        return _unconstrained if allowed == UNLIMITED else Estimate(allowed)

    def estimate_components(self, question: EstimateQuestion) -> Estimate:
        if not self.enabled:
            return no_opinion(f"{NAME} is disabled")
        request = question.request
        assert isinstance(request, ComponentSetsRequest)
        if not request.components:
            return Estimate(UNLIMITED, reasons=(f"{NAME} received empty components list",))
        if not request.namespace:
            return Estimate(UNLIMITED)
        allowed = sets_admitted(question.snapshot.quotas, request, question.assumed, self.matching)
        if not allowed:
            return Estimate(0, EstimateCode.UNSCHEDULABLE, (f"zero component sets estimated by {NAME}",))
        return _unconstrained if allowed == UNLIMITED else Estimate(allowed)


_unconstrained = Estimate(UNLIMITED, reasons=(NO_CONSTRAINTS,))
