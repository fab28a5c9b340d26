"""Restores a cluster from a file into an embedded one: its nodes run, and its pods stay where they are.

The file is a snapshot, or the first state of a recording. Nodes whose type is in the catalogue become
machines of the embedded cloud, so that they have a price and can be terminated; other nodes are never
removed. State that real controllers keep in their own format (revisions, hashes) is rewritten in the format
of the embedded ones; otherwise all workloads would be rolled out again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from karpool.kube.snapshots.recording import KEPT_METADATA
from karpool.model.catalogue.catalogue import Catalogue, capacity_type_of
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NODEPOOL, ON_DEMAND, TERMINATION_FINALIZER, NodePool
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.cloud.cloud import CloudOffer, Instance
from karpool_fleet.karpenter.provisioning.claims import HASH, HASH_VERSION, VERSION, pool_hash
from karpool_fleet.karpenter.provisioning.machines import CLAIM_TAG, CLUSTER_TAG, NAME_TAG
from karpool_fleet.kubelet.kubelet import RUN_SECONDS
from karpool_fleet.workloads import job_rules

Object = dict[str, Any]

# Kinds that an embedded cluster supports, in the order of their restoration.
KINDS = (
    "Namespace",
    "PriorityClass",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ResourceQuota",
    "PodDisruptionBudget",
    "NodeOverlay",
    "CapacityBuffer",
    "NodePool",
    "NodeClaim",
    "Node",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "Pod",
)
# The embedded Karpenter has one node class, whatever the cloud.
NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}

RUNS_ON = str(10 * 365 * 86_400)  # run time in seconds of a pod whose end is not known
_ENDED = ("Succeeded", "Failed")


@dataclass
class RestoredCluster:
    """The objects for the server, the machines for the cloud, and notes for readers of the figures."""

    objects: list[Object] = field(default_factory=list)
    machines: list[Instance] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def restored(
    objects: Sequence[Object],
    cluster: str,
    catalogue: Catalogue,
    *,
    taken_at: float,
    now: float,
    uptime: float,
) -> RestoredCluster:
    """Restore a cluster. `taken_at` becomes `now` on the wall clock; `uptime` is the clock of machines."""
    whole = RestoredCluster()
    by_kind: dict[str, list[Object]] = {kind: [] for kind in KINDS}
    for obj in objects:
        if (kind := obj.get("kind")) in by_kind and not _is_over(obj):
            by_kind[str(kind)].append(_without_server_fields(obj, taken_at, now))
    pools = {pool["metadata"]["name"]: _pool(pool) for pool in by_kind["NodePool"]}
    by_kind["NodePool"] = list(pools.values())
    by_node = {_node_of(claim): claim for claim in by_kind["NodeClaim"]}
    kept, unsold = [], Counter[str]()
    for node in by_kind["Node"]:
        labels = node["metadata"].setdefault("labels", {})
        name = labels[HOSTNAME] = node["metadata"]["name"]
        pool = pools.get(labels.get(NODEPOOL, ""))
        claim = by_node.get(name) if pool is not None else None
        machine = _machine(node, claim, cluster, catalogue, uptime)
        node["spec"]["providerID"] = machine.provider_id if machine else f"static:///restored/{name}"
        if machine is None:
            unsold[labels.get(INSTANCE_TYPE) or "no type"] += 1
            continue
        whole.machines.append(machine)
        if claim is not None and pool is not None:
            node["metadata"]["finalizers"] = [TERMINATION_FINALIZER]
            kept.append(_claim(claim, pool, machine))
    if left_out := len(by_kind["NodeClaim"]) - len(kept):
        whole.notes.append(f"{left_out} NodeClaims without a node or without their pool are left out")
    if unsold:
        names = ", ".join(f"{count} x {name}" for name, count in unsold.most_common(5))
        whole.notes.append(
            f"{unsold.total()} nodes cost nothing and never go: the catalogue of {catalogue.region} "
            f"does not sell them in the cluster's zones ({names})"
        )
    by_kind["NodeClaim"] = kept
    for workload in (*by_kind["StatefulSet"], *by_kind["DaemonSet"]):
        # Their pods have the hash of a revision that is not in the file and must not count as outdated.
        workload["spec"]["updateStrategy"] = {"type": "OnDelete"}
    for pod in by_kind["Pod"]:
        if pod["spec"].get("restartPolicy") in ("Never", "OnFailure"):
            # A snapshot does not say when the pod ends; the player of a recording knows and ends it.
            annotations = pod["metadata"].get("annotations") or {}
            pod["metadata"]["annotations"] = {**annotations, RUN_SECONDS: RUNS_ON}
    whole.objects = [obj for kind in KINDS for obj in by_kind[kind]]
    _settle_owners(whole)
    return whole


def _is_over(obj: Object) -> bool:
    """Whether an object has ended, is being deleted, or is kept only for its history."""
    if _metadata(obj).get("deletionTimestamp"):
        return True
    if obj["kind"] == "ReplicaSet":
        return not (obj.get("spec") or {}).get("replicas")
    return obj["kind"] == "Pod" and (obj.get("status") or {}).get("phase") in _ENDED


def _metadata(obj: Object) -> Mapping[str, Any]:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _without_server_fields(obj: Object, taken_at: float, now: float) -> Object:
    metadata = {key: obj["metadata"][key] for key in KEPT_METADATA if key in obj["metadata"]}
    metadata.setdefault("creationTimestamp", "")
    # The controllers that would remove other finalizers do not run here.
    metadata["finalizers"] = [
        name for name in metadata.get("finalizers") or () if name == job_rules.FINALIZER
    ]
    kept = {**obj, "metadata": _at_new_times(metadata, taken_at, now), "spec": dict(obj.get("spec") or {})}
    if isinstance(obj.get("status"), dict):
        kept["status"] = _at_new_times(obj["status"], taken_at, now)
    return kept


def _at_new_times(value: Any, taken_at: float, now: float) -> Any:
    """Return a copy with all times shifted from `taken_at` to `now`.

    Heartbeats are left out: no kubelet continues them here, and a node whose heartbeats stop counts as lost.
    """
    if isinstance(value, list):
        return [_at_new_times(item, taken_at, now) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _new_time(item, taken_at, now)
        if isinstance(item, str) and key.endswith(("Time", "Timestamp"))
        else _at_new_times(item, taken_at, now)
        for key, item in value.items()
        if key != "lastHeartbeatTime"
    }


def _new_time(text: str, taken_at: float, now: float) -> str:
    """Shift a time; one that cannot be read, or is in the future, becomes now."""
    try:
        age = max(taken_at - parse_rfc3339(text), 0.0)
    except (Invalid, ValueError):
        age = 0.0
    return rfc3339(max(now - age, 0.0))


def _pool(pool: Object) -> Object:
    template = pool["spec"].get("template") or {}
    spec = {**(template.get("spec") or {}), "nodeClassRef": NODE_CLASS}
    pool["spec"] = {**pool["spec"], "template": {**template, "spec": spec}}
    pool.pop("status", None)
    return pool


def _node_of(claim: Object) -> str:
    return str((claim.get("status") or {}).get("nodeName", ""))


def _machine(
    node: Object, claim: Object | None, cluster: str, catalogue: Catalogue, uptime: float
) -> Instance | None:
    """Return the machine of a node; None if the catalogue has no such offer."""
    labels = node["metadata"]["labels"]
    offer = CloudOffer(
        labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), capacity_type_of(labels) or ON_DEMAND
    )
    sold = catalogue.types.get(offer.type)
    if sold is None or sold.price(offer.zone, offer.capacity_type) is None:
        return None
    tags = {}
    if claim is not None:
        name, uid = claim["metadata"]["name"], claim["metadata"].get("uid", "")
        tags = {CLUSTER_TAG: cluster, CLAIM_TAG: uid, NAME_TAG: name}
    return Instance(node["metadata"]["name"], sold, offer, uptime, tags, labels, ())


def _claim(claim: Object, pool: Object, machine: Instance) -> Object:
    claim["metadata"]["finalizers"] = [TERMINATION_FINALIZER]
    claim["spec"] = {**claim["spec"], "nodeClassRef": NODE_CLASS}
    claim["status"] = {**claim["status"], "providerID": machine.provider_id}
    try:
        current = pool_hash(decode(pool, NodePool))
    except Invalid:
        return claim  # the pool cannot be read, so it launches nothing
    annotations = claim["metadata"].setdefault("annotations", {})
    recorded = (pool["metadata"].get("annotations") or {}).get(HASH)
    if recorded is None or annotations.get(HASH) in (None, recorded):
        annotations |= {HASH: current, HASH_VERSION: VERSION}
    return claim


def _settle_owners(whole: RestoredCluster) -> None:
    """Drop references to owners that are not in the file; the garbage collector would delete their pods."""
    uids = {obj["metadata"].get("uid") for obj in whole.objects}
    orphans = 0
    for obj in whole.objects:
        owners = obj["metadata"].get("ownerReferences") or []
        kept = [owner for owner in owners if owner.get("uid") in uids or owner.get("kind") == "Node"]
        if len(kept) < len(owners):
            obj["metadata"]["ownerReferences"] = kept
            orphans += obj["kind"] == "Pod"
    if orphans:
        whole.notes.append(f"{orphans} pods hold their nodes: their owners are not in the file")
