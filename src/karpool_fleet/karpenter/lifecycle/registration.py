"""Registration of a node: its patch, and what initialisation still waits for. Pure."""

from typing import Any, NamedTuple

from karpool.cluster.nodes.expected import is_ephemeral, same_taint
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import (
    INITIALIZED,
    REGISTERED,
    TERMINATION_FINALIZER,
    UNREGISTERED,
    NodeClaim,
    requested,
)
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.resources import show_amount
from karpool.model.taints import Taint
from karpool_fleet.karpenter.provisioning.claims import wire_taint

DO_NOT_SYNC_TAINTS = "karpenter.sh/do-not-sync-taints"


class Waiting(NamedTuple):
    """The reason and message of a condition that is not met yet."""

    reason: str
    message: str


def registration_patch(claim: NodeClaim, node: Node) -> dict[str, Any]:
    """Return the patch that syncs a node with its claim; empty if it is in sync."""
    metadata: dict[str, Any] = {}
    labels = {**claim.labels, REGISTERED: "true"}
    if missing := {key: value for key, value in labels.items() if node.labels.get(key) != value}:
        metadata["labels"] = missing
    if missing := {k: v for k, v in claim.annotations.items() if node.annotations.get(k) != v}:
        metadata["annotations"] = missing
    finalizers = node.metadata.finalizers or []
    if TERMINATION_FINALIZER not in finalizers:
        metadata["finalizers"] = [*finalizers, TERMINATION_FINALIZER]
    owners = node.metadata.owner_references or []
    if not any(owner.uid == claim.metadata.uid for owner in owners):
        metadata["ownerReferences"] = [
            {
                "apiVersion": "karpenter.sh/v1",
                "kind": "NodeClaim",
                "name": claim.name,
                "uid": claim.metadata.uid,
                "blockOwnerDeletion": True,
            }
        ]
    patch: dict[str, Any] = {"metadata": metadata} if metadata else {}
    taints = _registered_taints(claim, node)
    if taints != list(node.spec.taints or ()):
        patch["spec"] = {"taints": [wire_taint(taint) for taint in taints]}
    return patch


def _registered_taints(claim: NodeClaim, node: Node) -> list[Taint]:
    taints = [taint for taint in node.spec.taints or () if not same_taint(taint, UNREGISTERED)]
    # Only the first time: a startup taint that was removed later must not come back.
    if node.labels.get(REGISTERED) == "true" or node.labels.get(DO_NOT_SYNC_TAINTS) == "true":
        return taints
    for wanted in (*claim.taints, *(claim.spec.startup_taints or ())):
        if not any(same_taint(wanted, other) for other in taints):
            taints.append(wanted)
    return taints


def not_initialized(claim: NodeClaim, node: Node) -> Waiting | None:
    """Return what an initialised node would need; None if nothing is missing."""
    if not node.is_ready:
        return Waiting("NodeNotReady", "Node status is NotReady")
    starting = claim.spec.startup_taints or ()
    for taint in node.spec.taints or ():
        if any(same_taint(taint, other) for other in starting):
            return Waiting("StartupTaintsExist", f"StartupTaint {str(taint)!r} still exists")
    for taint in node.spec.taints or ():
        if is_ephemeral(taint):
            return Waiting("KnownEphemeralTaintsExist", f"KnownEphemeralTaint {str(taint)!r} still exists")
    try:
        wanted, shown = requested(claim.spec), allocatable(node)
    except Invalid as error:
        return Waiting("ResourceNotRegistered", str(error))
    for name, units in wanted.items():
        if units and not shown.get(name):
            wants = show_amount(name, units)
            return Waiting(
                "ResourceNotRegistered", f"Resource {name!r} was requested ({wants}) but not registered"
            )
    return None


def initialization_patch(node: Node) -> dict[str, Any]:
    if node.labels.get(INITIALIZED) == "true":
        return {}
    return {"metadata": {"labels": {INITIALIZED: "true"}}}
