"""The volume claims of a pod, which must be bound between the choice of a node and the binding."""

from collections.abc import Callable
from typing import Any

from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.volumes import BIND_COMPLETED, SELECTED_NODE

Claim = dict[str, Any]
Get = Callable[[ObjectKey], Claim | None]


def claim_keys(pod: Pod) -> list[ObjectKey]:
    """Return all claims, including those of ephemeral volumes, which are named after pod and volume."""
    keys = []
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            keys.append(ObjectKey(pod.metadata.namespace, volume.persistent_volume_claim.claim_name))
        elif volume.ephemeral is not None:
            keys.append(ObjectKey(pod.metadata.namespace, f"{pod.name}-{volume.name}"))
    return keys


def missing_claim(pod: Pod, get: Get) -> str | None:
    """Return the name of the first claim that does not exist."""
    return next((key.name for key in claim_keys(pod) if get(key) is None), None)


def unbound_claims(pod: Pod, get: Get) -> list[ObjectKey]:
    return [key for key in claim_keys(pod) if (claim := get(key)) is None or not is_bound(claim)]


def is_bound(claim: Claim) -> bool:
    completed = BIND_COMPLETED in annotations_of(claim) or claim.get("status", {}).get("phase") == "Bound"
    return bool(claim.get("spec", {}).get("volumeName")) and completed


def selected_node(claim: Claim) -> str:
    return str(annotations_of(claim).get(SELECTED_NODE, ""))


def annotations_of(obj: Claim) -> dict[str, str]:
    annotations: dict[str, str] = obj["metadata"].get("annotations") or {}
    return annotations
