"""The smart pod: a pod that exists only to be pending, so that an autoscaler launches a node for it.

`smart_pod` derives every field from the request, so that equal requests give equal manifests. Video memory is
never requested as host memory: units hold what the real pods request. The pod yields to all others (negative
priority, never preempts), has no privileges, needs no grace period, and is protected from consolidation while
it exists. Pure.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, DO_NOT_DISRUPT, NODEPOOL
from karpool.model.kubernetes.api_resources import PODS, ApiResource, ObjectKey
from karpool.model.kubernetes.meta import WireObject, condition
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import AffinityTerm
from karpool.model.kubernetes.times import moment, rfc3339
from karpool.model.labels import LabelMatcher, check_value
from karpool.model.quantity import INT64_MAX
from karpool.model.requirements import Requirements, ValueSet
from karpool.model.resources import is_extended, quantities
from karpool.model.taints import NO_SCHEDULE, Toleration
from karpool.provisioning.names import digest, label_value, slug
from karpool.provisioning.node_request import UNITS_MAX, NodeCandidate, NodeRequest, RequestPurpose
from karpool.provisioning.placeholders.placeholder import (
    CANDIDATE,
    DEADLINE,
    EPOCH,
    INDEX,
    KARPOOL,
    MANAGED_BY,
    REQUEST,
    Placeholder,
    PlaceholderState,
)

DESIGN = "tensor-fusion.ai"
COMPONENT = f"{DESIGN}/component"
SMART_SCHEDULER = "smart-scheduler"
GPU_MODEL = f"{DESIGN}/gpu-model"
DEVICE_POOL = f"{DESIGN}/pool"
TRIGGER_TYPE = f"{DESIGN}/trigger-type"
ORIGINAL_REQUEST = f"{DESIGN}/original-request"
CONTAINER = "gpu-trigger"
SELECTOR = f"{COMPONENT}={SMART_SCHEDULER},{MANAGED_BY}={KARPOOL}"

# Karpenter treats a node as empty if no pod on it has a higher priority than this.
PRIORITY_FLOOR = -(2**25)
PRIORITY_CEILING = -1000
_NAME_PREFIX = {RequestPurpose.SCALE_UP: "smart-gpu", RequestPurpose.REPLACEMENT: "smart-node"}
_ABOUT_BYTES = 1024
_DEMAND_SHOWN = 64  # UIDs; keeps the annotation well below 4 KiB
_NEVER_EMPTY = frozenset((NODEPOOL, INSTANCE_TYPE, ZONE, CAPACITY_TYPE))
_NOBODY = 65532
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SmartPodSettings:
    """Settings of smart pods.

    `scheduler_name` must be a scheduler that sets `Unschedulable`; otherwise set `marks_unschedulable`, and
    the creator of the pod writes the condition that autoscalers look for.
    """

    namespace: str = "karpool-smart-pods"
    image: str = "registry.k8s.io/pause:3.9"
    priority_class: str = "karpool-smart-pod"
    priority: int = -1_000_000
    scheduler_name: str = "default-scheduler"
    marks_unschedulable: bool = False
    active_deadline_seconds: int = 2700
    maximum_age_seconds: float = 2400.0

    def __post_init__(self) -> None:
        if not PRIORITY_FLOOR < self.priority <= PRIORITY_CEILING:
            allowed = f"must be above {PRIORITY_FLOOR} and at most {PRIORITY_CEILING}"
            raise Invalid("priority", self.priority, f"{allowed}, so that every workload comes first")
        if self.active_deadline_seconds < self.maximum_age_seconds:
            reason = f"must not be below the maximum age of {self.maximum_age_seconds:g} s"
            raise Invalid("activeDeadlineSeconds", self.active_deadline_seconds, reason)


def pod_name(ask: NodeRequest, index: int) -> str:
    middle = slug(ask.model or ask.pool)
    parts = (_NAME_PREFIX[ask.purpose], middle, digest(ask.request), str(ask.epoch), str(index))
    return "-".join(part for part in parts if part)


def smart_pod(ask: NodeRequest, candidate: NodeCandidate, index: int, settings: SmartPodSettings) -> Object:
    """Return the manifest of unit `index`. Raises Invalid if request and candidate contradict each other."""
    unit_resources = dict(ask.units[index].resources)
    requests = quantities(unit_resources)
    metadata: Object = {
        "name": pod_name(ask, index),
        "namespace": settings.namespace,
        "labels": labels(ask, candidate, index),
        "annotations": annotations(ask, candidate),
    }
    if ask.owner is not None:
        metadata["ownerReferences"] = [msgspec.to_builtins(ask.owner)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "schedulerName": settings.scheduler_name,
            "priorityClassName": settings.priority_class,
            "preemptionPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": settings.active_deadline_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _NOBODY,
                "runAsGroup": _NOBODY,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "affinity": {
                **node_affinity(ask.constraints(candidate)),
                **_apart_from(ask.avoid, candidate.apart),
            },
            "tolerations": [
                msgspec.to_builtins(toleration)
                for toleration in _tolerations(unit_resources, (*ask.tolerations, *candidate.tolerations))
            ],
            "containers": [
                {
                    "name": CONTAINER,
                    "image": settings.image,
                    "resources": {
                        "requests": requests,
                        # Devices cannot be overcommitted; the pause process uses no CPU or memory.
                        "limits": {name: text for name, text in requests.items() if _is_device(name)},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def labels(ask: NodeRequest, candidate: NodeCandidate, index: int) -> dict[str, str]:
    """Return the labels of all objects of a request."""
    fixed = {
        "app.kubernetes.io/name": "karpool",
        "app.kubernetes.io/component": "provisioning",
        MANAGED_BY: KARPOOL,
        COMPONENT: SMART_SCHEDULER,
        TRIGGER_TYPE: ask.purpose.value,
        REQUEST: ask.request,
        EPOCH: str(ask.epoch),
        INDEX: str(index),
        CANDIDATE: candidate.key,
    }
    texts = {GPU_MODEL: ask.model, DEVICE_POOL: ask.pool}
    return fixed | {key: label_value(text) for key, text in texts.items() if text}


def annotations(ask: NodeRequest, candidate: NodeCandidate) -> dict[str, str]:
    texts_by_key = {
        f"{DESIGN}/created-by": "intelligent-scheduling-controller",
        f"{DESIGN}/purpose": "trigger-karpenter-scaling",
        f"{DESIGN}/cleanup-after": "node-ready",
        ORIGINAL_REQUEST: original_request(ask),
        f"{CANDIDATE}-constraints": _cut(str(candidate)),
        DO_NOT_DISRUPT: "true",
    }
    texts = {GPU_MODEL: ask.model, DEVICE_POOL: ask.pool}
    texts_by_key |= {key: _cut(text) for key, text in texts.items() if text}
    if ask.deadline is not None:
        texts_by_key[DEADLINE] = rfc3339(ask.deadline)
    return texts_by_key


def original_request(ask: NodeRequest) -> str:
    """Return the pending pods and the purpose as JSON below 4 KiB, without text from users' pods."""
    shown = [_cut(uid, 36) for uid in ask.demand[:_DEMAND_SHOWN]]
    about = {"about": _cut(ask.about), "demand": shown, "demandCount": len(ask.demand)}
    return json.dumps(about, separators=(",", ":"), ensure_ascii=True)


def _cut(text: str, limit: int = _ABOUT_BYTES) -> str:
    """Return the text as printable ASCII, so that a character is one byte in JSON and annotations."""
    clean = "".join(
        character if character.isascii() and character.isprintable() and character not in '"\\' else "?"
        for character in text
    )
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def node_affinity(constraints: Requirements) -> Object:
    """Return a required affinity with one term. Raises Invalid for a key that no node can satisfy."""
    entries = [entry for key in sorted(constraints) for entry in _expressions(key, constraints[key])]
    if not entries:
        return {}
    term = {"nodeSelectorTerms": [{"matchExpressions": entries}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}


def _apart_from(avoid: Mapping[str, str], apart: Iterable[AffinityTerm]) -> Object:
    terms: list[Object] = [_term(term) for term in apart]
    if avoid:
        chosen = {"matchLabels": dict(avoid)}
        terms.append({"labelSelector": chosen, "namespaceSelector": {}, "topologyKey": HOSTNAME})
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}} if terms else {}


def _term(term: AffinityTerm) -> Object:
    selector: Object = {"labelSelector": _selector(term.selector), "topologyKey": term.topology_key}
    if term.namespaces:
        selector["namespaces"] = sorted(term.namespaces)
    if term.namespace_selector is not None:
        selector["namespaceSelector"] = _selector(term.namespace_selector)
    return selector


def _selector(matcher: LabelMatcher) -> Object:
    """Return the selector; without requirements it selects everything, like the matcher."""
    entries = []
    for entry in matcher.requirements:
        values = {"values": sorted(entry.values)} if entry.values else {}
        entries.append({"key": entry.key, "operator": entry.operator, **values})
    return {"matchExpressions": entries} if entries else {}


def _expressions(key: str, allowed: ValueSet) -> Iterable[Object]:
    """Yield expressions with the operators of pods: Gt and Lt, but not Karpenter's Gte and Lte."""
    if not allowed.complement:
        if allowed.values:
            for value in allowed.values:
                check_value(value)
            yield {"key": key, "operator": "In", "values": sorted(allowed.values)}
        elif key in _NEVER_EMPTY:
            raise Invalid(f"constraints.{key}", [], "the requirements exclude every value of this label")
        else:
            yield {"key": key, "operator": "DoesNotExist"}
        return
    if allowed.values:
        yield {"key": key, "operator": "NotIn", "values": sorted(allowed.values)}
    yield from _bounds(key, allowed.at_least, allowed.at_most)
    if not allowed.values and allowed.at_least is None and allowed.at_most is None:
        yield {"key": key, "operator": "Exists"}


def _bounds(key: str, at_least: int | None, at_most: int | None) -> Iterable[Object]:
    """Yield the bounds. They are never negative, because a label value cannot start with a sign."""
    if at_least is not None and at_least > 0:
        yield {"key": key, "operator": "Gt", "values": [str(at_least - 1)]}
    elif at_least is not None and at_most is None:
        at_most = INT64_MAX  # any number
    if at_most is not None:
        yield {"key": key, "operator": "Lt", "values": [str(max(0, min(at_most + 1, INT64_MAX)))]}


def _tolerations(resources: Iterable[str], tolerations: Iterable[Toleration]) -> list[Toleration]:
    """Add tolerations for the taints that reserve nodes for the requested devices."""
    usual = [
        Toleration(key=name, operator="Exists", effect=NO_SCHEDULE)
        for name in sorted(resources)
        if _is_device(name)
    ]
    return list(dict.fromkeys((*usual, *tolerations)))


def _is_device(name: str) -> bool:
    return is_extended(name) or name.startswith("hugepages-")


# Reading


def selector(purpose: RequestPurpose | None) -> str:
    """Return the label selector for one purpose, or for all: several controllers may share a namespace."""
    return SELECTOR if purpose is None else f"{SELECTOR},{TRIGGER_TYPE}={purpose.value}"


def placeholder_of(pod: Pod, namespace: str) -> Placeholder | None:
    """Return the placeholder; None unless the pod is ours. The caller adds the claim and event messages."""
    placeholder = identified(PODS, pod, namespace)
    if placeholder is None:
        return None
    outlook, message = _outlook(pod)
    return replace(placeholder, outlook=outlook, message=message, node=pod.spec.node_name)


def identified(resource: ApiResource, obj: WireObject, namespace: str) -> Placeholder | None:
    """Return the placeholder; None unless namespace, labels and the name derived from them are ours."""
    pod_labels, meta = obj.labels, obj.metadata
    epoch, index = _number(pod_labels.get(EPOCH, "")), _number(pod_labels.get(INDEX, ""))
    request, purpose = pod_labels.get(REQUEST, ""), _purpose(pod_labels.get(TRIGGER_TYPE, ""))
    if (
        meta.namespace != namespace
        or pod_labels.get(COMPONENT) != SMART_SCHEDULER
        or pod_labels.get(MANAGED_BY) != KARPOOL
        or purpose is None
        or epoch is None
        or index is None
        or index >= UNITS_MAX
        or not meta.uid
        or not meta.name.startswith(f"{_NAME_PREFIX[purpose]}-")
        or not meta.name.endswith(f"-{digest(request)}-{epoch}-{index}")
    ):
        return None
    return Placeholder(
        resource,
        ObjectKey(meta.namespace, meta.name),
        meta.uid,
        request,
        epoch,
        index,
        purpose,
        moment(meta.creation_timestamp) or 0.0,
        candidate=pod_labels.get(CANDIDATE, ""),
        deadline=moment(obj.annotations.get(DEADLINE)),
        deleting_since=moment(meta.deletion_timestamp),
    )


def _outlook(pod: Pod) -> tuple[PlaceholderState, str]:
    if pod.is_terminal:
        return PlaceholderState.ENDED, pod.status.reason or f"the pod is {pod.status.phase}"
    if pod.spec.node_name:
        return PlaceholderState.THERE, ""
    scheduled = condition(pod.status.conditions, "PodScheduled")
    return PlaceholderState.WAITING, (scheduled.message or "") if scheduled is not None else ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _purpose(text: str) -> RequestPurpose | None:
    return RequestPurpose(text) if text in list(RequestPurpose) else None
