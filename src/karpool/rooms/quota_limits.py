"""How many replicas ResourceQuotas still admit, after promises.

This differs from Karmada on purpose: an over-used quota admits nothing (in Karmada the answer may be -1,
which callers ignore), and a request without a namespace is not checked against the quotas of all namespaces.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from karpool.model.karmada.replica_requirements import Component
from karpool.model.kubernetes.resource_quota import Matching, QuotaHeadroom, is_counted_by_quotas
from karpool.wire.requests import AssumedWorkload, ComponentSetsRequest, ReplicasRequest
from karpool.wire.server_protocol import INT32_MAX

UNLIMITED = INT32_MAX  # no quota limits the request
FindQuotas = Callable[[str], Sequence[QuotaHeadroom]]  # takes a namespace


def replicas_admitted(
    find_quotas: FindQuotas, request: ReplicasRequest, assumed: Sequence[AssumedWorkload], matching: Matching
) -> int:
    requirements = request.requirements
    if requirements is None or not requirements.namespace:
        return UNLIMITED
    allowed = UNLIMITED
    for quota in find_quotas(requirements.namespace):
        if quota.applies_to(requirements.priority_class_name, matching):
            taken = _taken(quota, assumed, requirements.namespace, matching)
            allowed = min(allowed, _admits(quota, dict(requirements.shape.requests), taken))
    return allowed


def sets_admitted(
    find_quotas: FindQuotas,
    request: ComponentSetsRequest,
    assumed: Sequence[AssumedWorkload],
    matching: Matching,
) -> int:
    allowed = UNLIMITED
    for quota in find_quotas(request.namespace) if request.namespace else ():
        concerned = [component for component in request.components if _concerns(quota, component, matching)]
        if concerned:
            taken = _taken(quota, assumed, request.namespace, matching)
            allowed = min(allowed, _admits(quota, _total(concerned), taken))
    return allowed


def _concerns(quota: QuotaHeadroom, component: Component, matching: Matching) -> bool:
    if not quota.selectors:
        return True
    requirements = component.requirements
    return requirements is not None and quota.applies_to(requirements.priority_class_name, matching)


def _taken(
    quota: QuotaHeadroom, assumed: Sequence[AssumedWorkload], namespace: str, matching: Matching
) -> Mapping[str, int]:
    """Return what promises in the namespace use of a quota that has not counted their pods yet."""
    return _total(
        component
        for workload in assumed
        if workload.namespace == namespace
        for component in _without_pods(workload)
        if component.requirements is not None and _concerns(quota, component, matching)
    )


def _without_pods(workload: AssumedWorkload) -> Iterable[Component]:
    """Return replicas that have no pods yet: the quota has already counted pods without a node.

    With several components it is not known to which of them those pods belong.
    """
    if len(workload.components) != 1 or not workload.waiting:
        return workload.components
    (component,) = workload.components
    replicas = max(0, component.replicas - workload.waiting)
    return (Component(component.name, replicas, component.requirements),)


def _total(components: Iterable[Component]) -> dict[str, int]:
    total: dict[str, int] = {}
    for component in components:
        if component.requirements is not None:
            for name, units in component.requirements.shape.requests:
                if is_counted_by_quotas(name):
                    total[name] = total.get(name, 0) + units * component.replicas
    return total


def _admits(quota: QuotaHeadroom, requests: Mapping[str, int], taken: Mapping[str, int]) -> int:
    """Return how many times `requests` fit into the rest of the quota; UNLIMITED without a limit."""
    free = {name: units - taken.get(name, 0) for name, units in quota.free.items()}
    if any(free[name] < 0 < taken.get(name, 0) for name in free):
        return 0
    fits = [max(free[name], 0) // units for name, units in requests.items() if name in free and units > 0]
    return min((UNLIMITED, *fits))
