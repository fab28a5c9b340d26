"""ResourceQuotaEstimator: what the namespace's ResourceQuotas still admit.

Only `status.hard` and `status.used` are read, for cpu, memory and extended
resources, with or without `requests.` in front. Different from Karmada on purpose: an
over-used quota admits nothing (there it may answer -1, which callers ignore), and a
request without a namespace is not held against the quotas of all namespaces.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import structlog

from karpool.cluster.changes import ObjectChange
from karpool.estimator.plugins.interface import UNLIMITED, Estimate, EstimateCode, PluginRole, no_opinion
from karpool.estimator.question import EstimateQuestion
from karpool.kube.watched import WatchedKind
from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import Component, ReplicaRequirements
from karpool.model.kubernetes.api_resources import RESOURCEQUOTAS, ObjectKey
from karpool.model.kubernetes.meta import Wire, WireObject
from karpool.model.kubernetes.pod import QuantityMap
from karpool.wire.requests import ComponentSetsRequest

NAME = "ResourceQuotaEstimator"
NO_CONSTRAINTS = f"{NAME} found no quota constraints"
_PREFIX = "requests."

log = structlog.get_logger(__name__)


class ScopeRequirement(Wire, frozen=True):
    scope_name: str = ""
    operator: str = ""
    values: list[str] | None = None


class ScopeSelector(Wire, frozen=True):
    match_expressions: list[ScopeRequirement] | None = None


class ResourceQuotaSpec(Wire, frozen=True):
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Wire, frozen=True):
    hard: QuantityMap | None = None
    used: QuantityMap | None = None


class ResourceQuota(WireObject, frozen=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


Matching = Literal["any", "all"]


@dataclass(frozen=True)
class QuotaHeadroom:
    """One quota: what is left, and whom it is for. No `selectors`: for everybody."""

    name: str
    free: Mapping[str, int]  # may be negative
    selectors: tuple[ScopeRequirement, ...] = ()

    def applies_to(self, priority_class: str, matching: Matching = "any") -> bool:
        """Karmada asks for any selector to match, Kubernetes itself for all."""
        decide: Callable[[Iterable[bool]], bool] = any if matching == "any" else all
        return not self.selectors or decide(_selects(selector, priority_class) for selector in self.selectors)


def quota_of(given: ResourceQuota) -> QuotaHeadroom:
    """Raises Invalid naming the entry."""
    status, spec = given.status, given.spec
    free: dict[str, int] = {}
    # Sorted, so that `requests.cpu` is written after `cpu` and wins.
    for name in sorted(set(status.hard or {}) & set(status.used or {})):
        plain = name.removeprefix(_PREFIX)
        if not name.startswith("limits.") and is_supported(plain):
            hard, used = (status.hard or {})[name], (status.used or {})[name]
            free[plain] = _amount(plain, hard, "hard") - _amount(plain, used, "used")
    scopes = tuple(ScopeRequirement(scope_name=scope, operator="Exists") for scope in spec.scopes or ())
    chosen = spec.scope_selector.match_expressions if spec.scope_selector else None
    return QuotaHeadroom(given.metadata.key, free, (*scopes, *(chosen or ())))


def is_supported(name: str) -> bool:
    return name in (resources.CPU, resources.MEMORY) or resources.is_extended(name)


def _amount(name: str, text: str | int | float, field: str) -> int:
    try:
        return resources.amount(name, text)
    except Invalid as error:
        raise error.at(f"status.{field}") from None


def _selects(selector: ScopeRequirement, priority_class: str) -> bool:
    if selector.scope_name != "PriorityClass":
        return False  # a template does not say what the other scopes ask about
    values = selector.values or []
    match selector.operator:
        case "Exists":
            return bool(priority_class) and not values
        case "DoesNotExist":
            return not priority_class and not values
        case "In":
            return bool(values) and bool(priority_class) and priority_class in values
        case "NotIn":
            return bool(values) and priority_class not in values
    return False


class QuotaStore:
    """The quotas of a cluster by namespace; an informer's sink."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, QuotaHeadroom]] = {}

    def of(self, namespace: str) -> Sequence[QuotaHeadroom]:
        return tuple(self._known.get(namespace, {}).values())

    def apply(self, changes: Sequence[ObjectChange[ResourceQuota]], /) -> None:
        for change in changes:
            if change.type == "DELETED":
                self.remove(change.key)
            elif change.object is not None:
                self.put(change.object)

    def put(self, given: ResourceQuota) -> None:
        """A quota that cannot be understood is left out, and said to be."""
        meta = given.metadata
        try:
            self._known.setdefault(meta.namespace, {})[meta.name] = quota_of(given)
        except Invalid as error:
            log.warning("quota skipped", quota=meta.key, reason=str(error))
            self.remove(ObjectKey(meta.namespace, meta.name))

    def remove(self, key: ObjectKey) -> None:
        quotas = self._known.get(key.namespace, {})
        quotas.pop(key.name, None)
        if not quotas:
            self._known.pop(key.namespace, None)


class ResourceQuotaEstimator:
    name = NAME
    role = PluginRole.LIMIT

    def __init__(self, *, enabled: bool = True, matching: Matching = "any") -> None:
        self.quotas = QuotaStore()
        self._enabled = enabled
        self._matching: Matching = matching

    @cached_property
    def watches(self) -> Sequence[WatchedKind[ResourceQuota]]:
        return (WatchedKind(RESOURCEQUOTAS, ResourceQuota, self.quotas),) if self._enabled else ()

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
        for quota in self.quotas.of(wanted.namespace):
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
        for quota in self.quotas.of(request.namespace):
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
                if is_supported(name):
                    total[name] = total.get(name, 0) + units * component.replicas
    return total


def _admits(quota: QuotaHeadroom, wanted: Mapping[str, int], taken: Mapping[str, int]) -> int:
    """How many times `wanted` fits into what is left; UNLIMITED when the quota does not mind."""
    free = {name: units - taken.get(name, 0) for name, units in quota.free.items()}
    if any(free[name] < 0 < taken.get(name, 0) for name in free):
        return 0
    fits = [max(free[name], 0) // units for name, units in wanted.items() if name in free and units > 0]
    return min((UNLIMITED, *fits))
