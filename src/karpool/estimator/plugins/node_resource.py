"""NodeResourceEstimator: the free capacity of existing nodes.

Replicas: the sum, over the nodes that pass the filters, of what each could take. Component sets: complete
sets, first fit. Assumed workloads are placed before either.
"""

from dataclasses import dataclass

from karpool.estimator.plugins.interface import (
    EXISTING_NODES,
    UNLIMITED,
    CapacityPart,
    Estimate,
    EstimateCode,
    PluginRole,
    no_opinion,
)
from karpool.estimator.question import EstimateQuestion
from karpool.wire.requests import ComponentSetsRequest

NAME = "NodeResourceEstimator"


@dataclass(frozen=True, slots=True)
class NodeResourceEstimator:
    enabled: bool = True
    name: str = NAME
    role: PluginRole = PluginRole.SOURCE

    def estimate(self, question: EstimateQuestion) -> Estimate:
        if not self.enabled:
            return no_opinion(f"{NAME} is disabled")
        part = existing_nodes(question)
        return Estimate(part.amount, parts=(part,))

    def estimate_components(self, question: EstimateQuestion) -> Estimate:
        if not self.enabled:
            return no_opinion(f"{NAME} is disabled")
        if not has_components(question):
            return no_opinion(f"{NAME} received empty components list")
        part = existing_nodes(question)
        if not part.amount:
            return Estimate(0, EstimateCode.UNSCHEDULABLE, ("no enough resources",), (part,))
        return Estimate(part.amount, parts=(part,))


def existing_nodes(question: EstimateQuestion) -> CapacityPart:
    return CapacityPart(EXISTING_NODES, min(question.existing, UNLIMITED))


def has_components(question: EstimateQuestion) -> bool:
    return isinstance(question.request, ComponentSetsRequest) and bool(question.request.components)
