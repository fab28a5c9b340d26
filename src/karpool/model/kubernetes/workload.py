"""Returns the pods that a workload would create.

What the API server and the controllers add is added here too, as far as it decides where a pod may run:
requests that follow from limits, the tolerations of daemon pods, the volumes of a StatefulSet. What depends
on other objects of the cluster (LimitRanges, RuntimeClasses, admission webhooks) is not added.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import ObjectMeta, OwnerReference, decode
from karpool.model.kubernetes.pod import Container, Pod, PodSpec, ResourceRequirements, Volume
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE, Toleration

_REPLICAS_MAX = 2**31 - 1


class PodTemplate(NamedTuple):
    pod: Pod
    replicas: int  # for a DaemonSet: 1, on every node that suits it


def pod_template(obj: Any) -> PodTemplate:
    """Return the pod of a Pod, or of anything with a pod template: Deployment, Job, CronJob, custom kinds.

    Raises Invalid, which names the field.
    """
    if not isinstance(obj, dict):
        raise Invalid("", obj, "is not a Kubernetes object")
    kind = obj.get("kind")
    if kind == "Pod":
        pod = decode(obj, Pod)
        _refuse_negative(pod, "spec")
        return PodTemplate(_with_defaults(_named(pod, pod.metadata)), 1)
    if kind == "CronJob":
        job, path = mapping_in(obj, "spec", "jobTemplate"), "spec.jobTemplate.spec.template"
    else:
        job, path = obj, "spec.template"
    spec = mapping_in(job, "spec")
    _refuse_reference(spec)
    pod = pod_of_template(obj, spec.get("template"), path)
    if kind == "DaemonSet":
        pod = _tolerating(pod)
    if kind == "StatefulSet":
        pod = _with_claims(pod, spec.get("volumeClaimTemplates"))
    return PodTemplate(pod, _replicas(kind, spec))


def _refuse_reference(spec: Mapping[str, Any]) -> None:
    """Refuse a Rollout whose template is in another workload, because that workload is not available."""
    reference = spec.get("workloadRef")
    if isinstance(reference, dict) and spec.get("template") is None:
        raise Invalid(
            "spec.workloadRef.name",
            reference.get("name"),
            f"its pods are described there: ask about that {reference.get('kind')}, with --replicas",
        )


def pod_of_template(obj: Mapping[str, Any], template: Any, path: str) -> Pod:
    """Return the pod of the template at `path`. Raises Invalid."""
    if not isinstance(template, dict):
        raise Invalid(path, template, f"{obj.get('kind') or 'the object'} has no pod template there")
    try:
        pod = decode({key: template[key] for key in ("metadata", "spec") if key in template}, Pod)
    except Invalid as error:
        raise error.at(path) from None
    _refuse_negative(pod, f"{path}.spec")
    return _with_defaults(_named(pod, decode(obj.get("metadata") or {}, ObjectMeta), owner=_owner(obj)))


def _refuse_negative(pod: Pod, path: str) -> None:
    """Refuse negative amounts, as the API server does."""
    lists = ("containers", pod.spec.containers), ("initContainers", pod.spec.init_containers)
    for field, containers in lists:
        for index, container in enumerate(containers or ()):
            wants = container.resources or ResourceRequirements()
            for section, amounts in (("requests", wants.requests), ("limits", wants.limits)):
                for name, text in (amounts or {}).items():
                    if str(text).lstrip().startswith("-"):
                        where = f"{path}.{field}[{index}].resources.{section}.{name}"
                        raise Invalid(where, text, "must not be negative")


def mapping_in(obj: Mapping[str, Any], *steps: str) -> dict[str, Any]:
    value: Any = obj
    for index, step in enumerate(steps):
        value = value.get(step)
        if not isinstance(value, dict):
            raise Invalid(".".join(steps[: index + 1]), value, "must be an object")
    mapping: dict[str, Any] = value
    return mapping


def _replicas(kind: object, spec: Mapping[str, Any]) -> int:
    if kind == "DaemonSet":
        return 1
    if kind in ("Job", "CronJob"):
        return job_pods(spec)
    return count_in(spec, "replicas", 1)


def job_pods(spec: Mapping[str, Any], path: str = "spec") -> int:
    """Return how many pods run at once: never more than are still to be completed."""
    parallel = count_in(spec, "parallelism", 1, path)
    return min(parallel, count_in(spec, "completions", parallel, path))


def count_in(spec: Mapping[str, Any], name: str, default: int, path: str = "spec") -> int:
    """Return the number of pods at `path.name`. Raises Invalid."""
    amount = spec.get(name)
    if amount is None:
        return default
    if not isinstance(amount, int) or isinstance(amount, bool) or not 0 <= amount <= _REPLICAS_MAX:
        raise Invalid(f"{path}.{name}", amount, f"must be a whole number from 0 to {_REPLICAS_MAX}")
    return amount


def _owner(obj: Mapping[str, Any]) -> OwnerReference:
    meta = obj.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else ""
    return OwnerReference(
        api_version=str(obj.get("apiVersion") or ""),
        kind=str(obj.get("kind") or ""),
        name=str(name or ""),
        controller=True,
    )


def _named(pod: Pod, meta: ObjectMeta, owner: OwnerReference | None = None) -> Pod:
    pod_meta = pod.metadata
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(
            pod_meta,
            # The name in a template is not used: controllers generate their own.
            name=(pod_meta.name if owner is None else "") or meta.name,
            namespace=meta.namespace or "default",
            owner_references=pod_meta.owner_references if owner is None else [owner],
        ),
    )


def _with_spec(pod: Pod, **changes: Any) -> Pod:
    spec: PodSpec = msgspec.structs.replace(pod.spec, **changes)
    return msgspec.structs.replace(pod, spec=spec)


_DAEMON_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{condition}", operator="Exists", effect=effect)
    for condition, effect in (
        ("not-ready", NO_EXECUTE),
        ("unreachable", NO_EXECUTE),
        ("disk-pressure", NO_SCHEDULE),
        ("memory-pressure", NO_SCHEDULE),
        ("pid-pressure", NO_SCHEDULE),
        ("unschedulable", NO_SCHEDULE),
    )
)
_HOST_NETWORK_TOLERATION = Toleration(
    key="node.kubernetes.io/network-unavailable", operator="Exists", effect=NO_SCHEDULE
)


def daemon_tolerations(host_network: bool) -> tuple[Toleration, ...]:
    """Return the tolerations that the DaemonSet controller adds, for nodes in any state."""
    return (*_DAEMON_TOLERATIONS, _HOST_NETWORK_TOLERATION) if host_network else _DAEMON_TOLERATIONS


def _tolerating(pod: Pod) -> Pod:
    tolerations = pod.spec.tolerations or []
    added = daemon_tolerations(bool(pod.spec.host_network))
    return _with_spec(
        pod,
        tolerations=[*tolerations, *(toleration for toleration in added if toleration not in tolerations)],
    )


def _with_claims(pod: Pod, templates: Any) -> Pod:
    """Add a claim for each replica, created from the template like that of an ephemeral volume."""
    if not templates:
        return pod
    if not isinstance(templates, list) or not all(isinstance(template, dict) for template in templates):
        raise Invalid("spec.volumeClaimTemplates", templates, "must be a list of claims")
    made: dict[str, Volume] = {}
    for index, template in enumerate(templates):
        name = mapping_in(template, "metadata").get("name")
        if not isinstance(name, str) or not name:
            raise Invalid(f"spec.volumeClaimTemplates[{index}].metadata.name", name, "is required")
        made[name] = Volume(name=name, ephemeral={"volumeClaimTemplate": template})
    other_volumes = [volume for volume in pod.spec.volumes or () if volume.name not in made]
    return _with_spec(pod, volumes=[*other_volumes, *made.values()])


def _with_defaults(pod: Pod) -> Pod:
    """Set requests to limits where a container has only a limit, as the API server does."""
    return _with_spec(
        pod,
        containers=[_requesting(container) for container in pod.spec.containers or ()] or None,
        init_containers=[_requesting(container) for container in pod.spec.init_containers or ()] or None,
    )


def _requesting(container: Container) -> Container:
    container_resources = container.resources
    if container_resources is None or not container_resources.limits:
        return container
    requests = {**container_resources.limits, **(container_resources.requests or {})}
    filled = ResourceRequirements(requests=requests, limits=container_resources.limits)
    return msgspec.structs.replace(container, resources=filled)
