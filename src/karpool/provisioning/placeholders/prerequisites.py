"""The namespace and the priority class that placeholders need.

They are created once if missing, and never changed: an unsuitable object is reported, because it may be
intentional.
"""

from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.errors import AlreadyExists, Denied, NotFound
from karpool.model.kubernetes.api_resources import NAMESPACES, PRIORITYCLASSES, ApiResource
from karpool.model.kubernetes.priority import PriorityClass
from karpool.provisioning.placeholders.placeholder import KARPOOL, MANAGED_BY
from karpool.provisioning.placeholders.smart_pod import PRIORITY_CEILING, PRIORITY_FLOOR, SmartPodSettings

Object = dict[str, Any]


def namespace(settings: SmartPodSettings) -> Object:
    """Return the namespace, restricted to pods without privileges."""
    labels = {MANAGED_BY: KARPOOL, "pod-security.kubernetes.io/enforce": "restricted"}
    return {"metadata": {"name": settings.namespace, "labels": labels}}


def priority_class_of(settings: SmartPodSettings) -> Object:
    return {
        "metadata": {"name": settings.priority_class, "labels": {MANAGED_BY: KARPOOL}},
        "value": settings.priority,
        "globalDefault": False,
        "preemptionPolicy": "Never",
        "description": (
            "Placeholders that make an autoscaler add a node; every workload has a higher priority."
        ),
    }


def unsuitable(priority_class: PriorityClass) -> str | None:
    """Return why placeholders must not use this class; None if they may."""
    subject = f"PriorityClass {priority_class.name}"
    if priority_class.preemption_policy != "Never":
        return (
            f"{subject}: preemptionPolicy must be Never, otherwise placeholders evict workloads; "
            "delete the class"
        )
    if priority_class.global_default:
        return f"{subject}: globalDefault must be false, otherwise every pod without a class gets it"
    if not PRIORITY_FLOOR < priority_class.value <= PRIORITY_CEILING:
        allowed = f"above {PRIORITY_FLOOR} and at most {PRIORITY_CEILING}"
        return f"{subject}: value {priority_class.value} must be {allowed}; delete the class"
    return None


async def ensure_prerequisites(client: Client, settings: SmartPodSettings) -> list[str]:
    """Create what is missing; return the problems, each with a remedy. Idempotent."""
    problems = [
        await _ensure(client, NAMESPACES, namespace(settings)),
        await _ensure(client, PRIORITYCLASSES, priority_class_of(settings)),
    ]
    if not any(problems):
        priority_class = await client.get(PRIORITYCLASSES, settings.priority_class, into=PriorityClass)
        problems.append(unsuitable(priority_class) or "")
    return [problem for problem in problems if problem]


async def _ensure(client: Client, resource: ApiResource, manifest: Object) -> str:
    name = manifest["metadata"]["name"]
    try:
        present = await client.get(resource, name)
    except NotFound:
        pass
    except Denied:
        return ""  # without permission to read it, it may still be usable
    else:
        going = present["metadata"].get("deletionTimestamp") is not None
        return f"{resource.kind} {name} is being deleted; wait until it is deleted" if going else ""
    try:
        await client.create(resource, manifest)
    except AlreadyExists:
        return ""
    except Denied as error:
        return f"{resource.kind} {name} does not exist and cannot be created ({error}); create it"
    return ""
