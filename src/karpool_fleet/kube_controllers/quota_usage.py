"""Usage of objects in a ResourceQuota, and scopes of quotas.

Amounts are integers in the units of `model.resources`: `cpu`, `requests.cpu` and `limits.cpu` in thousandths,
everything else whole. Only pods have scopes; a quota with scopes counts nothing else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod import Container, Pod, ResourceRequirements, effective_requests
from karpool.model.resources import Resources
from karpool_fleet.apiserver.objects.defaults import qos_class
from karpool_fleet.apiserver.objects.types import Object

COUNT = "count/"
# Objects that may also be counted under their bare name.
BARE = frozenset(
    (
        "configmaps",
        "secrets",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "persistentvolumeclaims",
    )
)
_STORAGE_CLASS = ".storageclass.storage.k8s.io/"
# If a quota limits one of these, every container must set it.
_STATED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
# Requests of these may also be limited under their bare name.
_SHORT = (resources.CPU, resources.MEMORY, resources.EPHEMERAL_STORAGE)


def base_of(name: str) -> str:
    """Return the resource whose unit a quota entry uses: `cpu` for `limits.cpu`."""
    for prefix in ("requests.", "limits."):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def parse_hard(hard: Mapping[str, str | int | float]) -> Resources:
    """Parse the limits. Raises Invalid naming the entry."""
    usage: Resources = {}
    for name, text in hard.items():
        try:
            usage[name] = resources.amount(base_of(name), text)
        except Invalid as error:
            raise error.at("spec.hard") from None
    return usage


def show(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: resources.show_amount(base_of(name), units) for name, units in amounts.items()}


def usage_of(kind: str, obj: Object) -> Resources:
    """Return everything that a quota could count for an object; `kind` is the resource with its group."""
    used: Resources = {f"{COUNT}{kind}": 1}
    if kind == "pods":
        resources.add(used, pod_usage(obj))
        return used
    if kind in BARE:
        used[kind] = 1
    if kind == "services":
        resources.add(used, _service_usage(obj))
    elif kind == "persistentvolumeclaims":
        resources.add(used, _claim_usage(obj))
    return used


def pod_usage(obj: Object) -> Resources:
    """Return the usage of a pod; nothing once it has ended."""
    pod = msgspec.convert(obj, Pod, strict=False)
    if pod.is_terminal:
        return {}
    used: Resources = {"pods": 1}
    for name, units in effective_requests(pod).items():
        used[f"requests.{name}"] = units
        if name in _SHORT or name.startswith("hugepages-"):
            used[name] = units
    for name, units in _limits(pod).items():
        used[f"limits.{name}"] = units
    return used


def _limits(pod: Pod) -> Resources:
    """Return the limits, which add up like requests; overhead counts only if there is a limit."""
    spec = msgspec.structs.replace(
        pod.spec,
        containers=[_limits_as_requests(container) for container in pod.spec.containers or ()],
        init_containers=[_limits_as_requests(container) for container in pod.spec.init_containers or ()],
        resources=_swapped(pod.spec.resources),
        overhead=None,
    )
    total = effective_requests(Pod(metadata=pod.metadata, spec=spec))
    for name, units in resources.parse(pod.spec.overhead).items():
        if total.get(name):
            total[name] += units
    return total


def _limits_as_requests(container: Container) -> Container:
    return msgspec.structs.replace(container, resources=_swapped(container.resources))


def _swapped(given: ResourceRequirements | None) -> ResourceRequirements | None:
    return ResourceRequirements(requests=given.limits) if given is not None else None


def _service_usage(obj: Object) -> Resources:
    spec = obj.get("spec") or {}
    balanced = spec.get("type") == "LoadBalancer"
    ports = len(spec.get("ports") or ()) if spec.get("type") in ("NodePort", "LoadBalancer") else 0
    if balanced and spec.get("allocateLoadBalancerNodePorts") is False:
        ports = 0
    return {"services.loadbalancers": int(balanced), "services.nodeports": ports}


def _claim_usage(obj: Object) -> Resources:
    spec = obj.get("spec") or {}
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage", 0)
    storage = resources.amount("storage", asked)
    used = {"requests.storage": storage}
    if name := spec.get("storageClassName"):
        used[f"{name}{_STORAGE_CLASS}requests.storage"] = storage
        used[f"{name}{_STORAGE_CLASS}persistentvolumeclaims"] = 1
    return used


def unstated(hard: Iterable[str], obj: Object) -> list[str]:
    """Return limited resources that a container of a pod does not set, as `limits.cpu for: main`."""
    spec = obj.get("spec") or {}
    if spec.get("resources"):
        return []  # set for the pod as a whole
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    missing = []
    for name in _STATED:
        if name not in hard:
            continue
        side = "limits" if name.startswith("limits.") else "requests"
        silent = [
            str(container.get("name"))
            for container in containers
            if base_of(name) not in ((container.get("resources") or {}).get(side) or {})
        ]
        if silent:
            missing.append(f"{name} for: {', '.join(silent)}")
    return missing


@dataclass(frozen=True, slots=True)
class QuotaScope:
    name: str
    operator: str = "Exists"
    values: frozenset[str] = frozenset()

    def covers(self, obj: Object) -> bool:
        """Whether a pod is in this scope."""
        spec = obj.get("spec") or {}
        match self.name:
            case "Terminating":
                return _limited_in_time(spec)
            case "NotTerminating":
                return not _limited_in_time(spec)
            case "BestEffort":
                return qos_class(spec) == "BestEffort"
            case "NotBestEffort":
                return qos_class(spec) != "BestEffort"
            case "PriorityClass":
                return self._matches(spec.get("priorityClassName") or "")
            case "CrossNamespacePodAffinity":
                return _reaches_across(spec)
        return False

    def _matches(self, value: str) -> bool:
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "DoesNotExist":
                return not value
        return bool(value)


def scopes_of(spec: Object) -> tuple[QuotaScope, ...]:
    """Return the scopes of `scopes` and `scopeSelector`; a pod must be in all of them."""
    plain = [QuotaScope(str(name)) for name in spec.get("scopes") or ()]
    selector: Any = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    selected = [
        QuotaScope(
            str(expression.get("scopeName")),
            str(expression.get("operator") or "Exists"),
            frozenset(map(str, expression.get("values") or ())),
        )
        for expression in selector
    ]
    return (*plain, *selected)


def _limited_in_time(spec: Object) -> bool:
    return spec.get("activeDeadlineSeconds") is not None


def _reaches_across(spec: Object) -> bool:
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        required = rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        preferred = rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        terms = [*required, *(term.get("podAffinityTerm") or {} for term in preferred)]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False
