"""How the control plane interprets a kind: replicas, requirements, health, status.

Built-in kinds are in a table; other kinds follow a convention: `spec.replicas`, and a pod template in
`spec.template` if there is one. No I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.components import components_of, has_components
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool.model.kubernetes.workload import pod_of_template
from karpool_fleet.karmada.propagation.names import TEMPLATE_GENERATION, Object

HEALTHY, UNHEALTHY, UNKNOWN = "Healthy", "Unhealthy", "Unknown"

Health = Callable[[Object], str]


@dataclass(frozen=True)
class Interpretation:
    """The interpretation of one kind. Names are fields of `spec`, or of `status` for `counts`."""

    replicas: str = ""  # the replicas to divide; empty if the kind has none
    template: str = ""  # the pod template; empty if the kind has none
    counts: tuple[str, ...] = ()  # reported by members, and summed for the template
    health: Health | None = None  # None: healthy as soon as it exists


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _observed(obj: Object) -> bool:
    status = obj.get("status") or {}
    return _number(status.get("observedGeneration")) == _number(obj["metadata"].get("generation"))


def _deployment_health(obj: Object) -> str:
    status, wanted = obj.get("status") or {}, _number(obj["spec"].get("replicas", 1))
    updated, available = _number(status.get("updatedReplicas")), _number(status.get("availableReplicas"))
    old = _number(status.get("replicas")) > updated
    done = _observed(obj) and updated >= wanted and not old and available >= updated
    return HEALTHY if done else UNHEALTHY


def _statefulset_health(obj: Object) -> str:
    status, wanted = obj.get("status") or {}, _number(obj["spec"].get("replicas", 1))
    updated, available = _number(status.get("updatedReplicas")), _number(status.get("availableReplicas"))
    # A partitioned update keeps old pods on purpose; availability counts.
    done = _observed(obj) and updated >= wanted and available >= updated
    return HEALTHY if done else UNHEALTHY


def _replicaset_health(obj: Object) -> str:
    available = _number((obj.get("status") or {}).get("availableReplicas"))
    replicas = _number(obj["spec"].get("replicas", 1))
    return HEALTHY if _observed(obj) and available >= replicas else UNHEALTHY


def _daemonset_health(obj: Object) -> str:
    status = obj.get("status") or {}
    wanted, updated = (
        _number(status.get("desiredNumberScheduled")),
        _number(status.get("updatedNumberScheduled")),
    )
    done = _observed(obj) and updated >= wanted and _number(status.get("numberAvailable")) >= updated
    return HEALTHY if done else UNHEALTHY


def _pod_health(obj: Object) -> str:
    status = obj.get("status") or {}
    if status.get("phase") == "Succeeded":
        return HEALTHY
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    return HEALTHY if status.get("phase") == "Running" and ready else UNHEALTHY


def _claim_health(obj: Object) -> str:
    return HEALTHY if (obj.get("status") or {}).get("phase") == "Bound" else UNHEALTHY


def _service_health(obj: Object) -> str:
    if (obj.get("spec") or {}).get("type") != "LoadBalancer":
        return HEALTHY
    ingress = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress")
    return HEALTHY if ingress else UNHEALTHY


def _set_health(obj: Object) -> str:
    """Return the health of a workload with several pod templates: it has a status, and has not failed."""
    status = obj.get("status") or {}
    failed = any(
        condition.get("type") == "Failed" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    return HEALTHY if status and not failed else UNHEALTHY


_REPLICAS = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")

BUILTIN: Mapping[tuple[str, str], Interpretation] = {
    ("apps", "Deployment"): Interpretation(
        "replicas", "template", (*_REPLICAS, "unavailableReplicas"), _deployment_health
    ),
    ("apps", "StatefulSet"): Interpretation(
        "replicas", "template", (*_REPLICAS, "currentReplicas"), _statefulset_health
    ),
    ("apps", "ReplicaSet"): Interpretation(
        "replicas",
        "template",
        ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"),
        _replicaset_health,
    ),
    ("apps", "DaemonSet"): Interpretation(
        "",
        "",
        (
            "currentNumberScheduled",
            "desiredNumberScheduled",
            "numberAvailable",
            "numberMisscheduled",
            "numberReady",
            "updatedNumberScheduled",
            "numberUnavailable",
        ),
        _daemonset_health,
    ),
    ("batch", "Job"): Interpretation("parallelism", "template", ("active", "succeeded", "failed")),
    ("batch", "CronJob"): Interpretation(),
    ("", "Pod"): Interpretation("", "", (), _pod_health),
    ("", "PersistentVolumeClaim"): Interpretation("", "", (), _claim_health),
    ("", "Service"): Interpretation("", "", (), _service_health),
}
# Kinds without an entry.
_BY_CONVENTION = Interpretation("replicas", "template")
# Kinds with several pod templates go to a member as a whole.
_SET = Interpretation(health=_set_health)


def interpretation(obj: Object) -> Interpretation:
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    default = _SET if has_components(obj) else _BY_CONVENTION
    return BUILTIN.get((group, str(obj.get("kind", ""))), default)


def replicas(obj: Object) -> int | None:
    """Return the replicas that can be divided; None for a kind without replicas."""
    if obj.get("kind") == "Pod":
        return 1
    field, spec = interpretation(obj).replicas, obj.get("spec")
    if not field or not isinstance(spec, dict) or field not in spec:
        return None
    amount = _number(spec[field])
    if obj.get("kind") == "Job":
        # More pods than missing completions would have no work.
        amount = min(amount, _number(spec.get("completions", amount)))
    return amount


def requirements(obj: Object) -> Object | None:
    """Return the requirements of one replica as `spec.replicaRequirements`; None if there are none."""
    pod = _pod(obj)
    needs = _requirements(pod) if pod is not None else {}
    if needs and obj["metadata"].get("namespace"):
        needs["namespace"] = obj["metadata"]["namespace"]
    return needs or None


def components(obj: Object) -> list[Object]:
    """Return `spec.components`; empty for a kind with one pod template, or with unreadable ones.

    The API server of the member will report what is wrong with them.
    """
    if not has_components(obj):
        return []
    try:
        components = components_of(obj)
    except Invalid:
        return []
    return [
        {"name": name, "replicas": replicas, "replicaRequirements": _requirements(pod)}
        for name, pod, replicas in components
    ]


def _pod(obj: Object) -> Pod | None:
    template: Any
    if obj.get("kind") == "Pod":
        template, path = {key: obj.get(key) for key in ("metadata", "spec")}, ""
    else:
        field, spec = interpretation(obj).template, obj.get("spec")
        template = spec.get(field) if field and isinstance(spec, dict) else None
        path = f"spec.{field}"
    try:
        pod = pod_of_template(obj, template, path)
    except Invalid:
        return None  # the API server of the member will report what is wrong
    return pod if pod.spec.containers else None


def with_replicas(obj: Object, replicas: int) -> Object:
    """Return the manifest with `replicas`; unchanged for a kind without replicas."""
    field, spec = interpretation(obj).replicas, obj.get("spec")
    if not field or not isinstance(spec, dict) or field not in spec:
        return obj
    return {**obj, "spec": {**spec, field: replicas}}


def health(obj: Object) -> str:
    judge = interpretation(obj).health
    try:
        return HEALTHY if judge is None else judge(obj)
    except (KeyError, TypeError, AttributeError):
        return UNKNOWN


def reflected(obj: Object) -> Object | None:
    """Return the status of a member's object for the control plane; None without a status."""
    status = obj.get("status")
    if not isinstance(status, dict) or not status:
        return None
    counts = interpretation(obj).counts
    if not counts or obj.get("kind") == "Job":
        return status
    kept = {name: status[name] for name in counts if status.get(name)}
    meta = obj["metadata"]
    marks = {
        "generation": _number(meta.get("generation")),
        "observedGeneration": _number(status.get("observedGeneration")),
        "resourceTemplateGeneration": _decimal((meta.get("annotations") or {}).get(TEMPLATE_GENERATION, "")),
    }
    return kept | {name: value for name, value in marks.items() if value}


def aggregated(template: Object, items: Sequence[Object]) -> Object | None:
    """Return the template's status from those of its members; None for a kind that is not summed."""
    counts = interpretation(template).counts
    if not counts:
        return None
    statuses = [item.get("status") or {} for item in items]
    result: Object = {}
    for name in counts:
        if total := sum(_number(status.get(name)) for status in statuses):
            result[name] = total
    if template.get("kind") == "Job":
        return {**result, **_job_end(statuses)}
    result["observedGeneration"] = _observed_generation(template, statuses)
    return result


def _decimal(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdecimal() else 0


def _observed_generation(template: Object, statuses: Sequence[Object]) -> int:
    """Return the template's generation once every member has observed it; until then the old value."""
    generation = _number(template["metadata"].get("generation"))
    caught_up = all(
        _number(status.get("resourceTemplateGeneration")) == generation
        and _number(status.get("observedGeneration")) == _number(status.get("generation"))
        for status in statuses
    )
    if caught_up:
        return generation
    return _number((template.get("status") or {}).get("observedGeneration"))


def _job_end(statuses: Sequence[Object]) -> Object:
    """Return the end of a Job: complete if it is in every member, failed if it failed in one."""
    result: Object = {}
    if starts := sorted(status["startTime"] for status in statuses if status.get("startTime")):
        result["startTime"] = starts[0]
    ends = [_ended(status) for status in statuses]
    if failed := [end for end in ends if end is not None and end["type"] == "Failed"]:
        result["conditions"] = [_condition("Failed", "JobFailed", "Job failed in a member", failed)]
    elif statuses and all(ends):
        finished = [status["completionTime"] for status in statuses if status.get("completionTime")]
        if finished:
            result["completionTime"] = max(finished)
        held = [end for end in ends if end is not None]
        result["conditions"] = [_condition("Complete", "Completed", "Job completed", held)]
    return result


def _ended(status: Object) -> Object | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            matching: Object = condition
            return matching
    return None


def _condition(kind: str, reason: str, message: str, ends: Sequence[Object]) -> Object:
    # The time of the last member, so that repeating gives the same result.
    when = max((end.get("lastTransitionTime") or "" for end in ends), default="")
    times = {"lastProbeTime": when, "lastTransitionTime": when} if when else {}
    return {"type": kind, "status": "True", "reason": reason, "message": message, **times}


def _requirements(pod: Pod) -> Object:
    """Return the requirements of one pod, without its namespace and without empty fields."""
    try:
        needs = effective_requests(pod)
    except Invalid:
        needs = {}
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    claim = {
        "hardNodeAffinity": affinity.required_during_scheduling_ignored_during_execution
        if affinity
        else None,
        "nodeSelector": pod.spec.node_selector,
        "tolerations": pod.spec.tolerations,
    }
    requirements: Object = {
        "nodeClaim": {name: msgspec.to_builtins(value) for name, value in claim.items() if value},
        "resourceRequest": {
            name: resources.show_amount(name, units) for name, units in needs.items() if units
        },
    }
    special = {name: value for name, value in requirements.items() if value}
    if special and pod.spec.priority_class_name:
        special["priorityClassName"] = pod.spec.priority_class_name
    return special
