"""ResourceQuotas, and what they still admit: `status.hard` minus `status.used`.

CPU, memory and extended resources are read, with or without the prefix `requests.`; and the number of pods
(`pods`, `count/pods`), which Karmada does not count.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Wire, WireObject
from karpool.model.kubernetes.pod import QuantityMap

_PREFIX = "requests."
_POD_KEYS = ("pods", "count/pods")
Matching = Literal["any", "all"]


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


@dataclass(frozen=True)
class QuotaHeadroom:
    """One quota: what is left, and which pods it applies to. Without `selectors`: all pods."""

    name: str
    free: Mapping[str, int]  # may be negative
    selectors: tuple[ScopeRequirement, ...] = ()
    pods: int | None = None  # number of pods still admitted; None: any number

    def applies_to(self, priority_class: str, matching: Matching = "any") -> bool:
        """Whether it applies to a priority class; Karmada requires any selector to match, Kubernetes all."""
        decide: Callable[[Iterable[bool]], bool] = any if matching == "any" else all
        return not self.selectors or decide(_selects(selector, priority_class) for selector in self.selectors)


def headroom_of(quota: ResourceQuota) -> QuotaHeadroom:
    """Return what is left of a quota. Raises Invalid, which names the entry."""
    status, spec = quota.status, quota.spec
    free: dict[str, int] = {}
    # Sorted, so that `requests.cpu` comes after `cpu` and wins.
    names = sorted(set(status.hard or {}) & set(status.used or {}))
    for name in names:
        plain = name.removeprefix(_PREFIX)
        if not name.startswith("limits.") and is_counted_by_quotas(plain):
            free[plain] = _left(name, plain, status)
    left = [_left(name, resources.PODS, status) for name in names if name in _POD_KEYS]
    scopes = tuple(ScopeRequirement(scope_name=scope, operator="Exists") for scope in spec.scopes or ())
    chosen = spec.scope_selector.match_expressions if spec.scope_selector else None
    return QuotaHeadroom(quota.metadata.key, free, (*scopes, *(chosen or ())), min(left, default=None))


def _left(name: str, resource: str, status: ResourceQuotaStatus) -> int:
    hard, used = (status.hard or {})[name], (status.used or {})[name]
    return _amount(resource, hard, "hard") - _amount(resource, used, "used")


def is_counted_by_quotas(resource: str) -> bool:
    return resource in (resources.CPU, resources.MEMORY) or resources.is_extended(resource)


def _amount(name: str, text: str | int | float, field: str) -> int:
    try:
        return resources.amount(name, text)
    except Invalid as error:
        raise error.at(f"status.{field}") from None


def _selects(selector: ScopeRequirement, priority_class: str) -> bool:
    if selector.scope_name != "PriorityClass":
        return False  # a template does not have the facts for the other scopes
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
