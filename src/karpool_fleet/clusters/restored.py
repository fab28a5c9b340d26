"""A cluster of a file, put into an embedded one: its nodes run, its pods stay where they are.

The file is a snapshot, or the first moment of a recording. Nodes whose type the catalogue has become machines
of the embedded cloud, so that they cost money and can be given back; others are there, and never go. What
real controllers keep to themselves (revisions, hashes) is written as the embedded ones would have
written it, or everything would be rolled out anew.
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

# What an embedded cluster can do something with, in the order in which it is put there.
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
# The embedded Karpenter has one class of nodes, whatever the cloud.
NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}

RUNS_ON = str(10 * 365 * 86_400)  # seconds that a pod runs whose end nobody knows
_ENDED = ("Succeeded", "Failed")


@dataclass
class RestoredCluster:
    """What is put into the server and into the cloud, and what a reader of figures should know."""

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
    """`now` is the wall clock that `taken_at` becomes, `uptime` the one that machines boot by."""
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
        # Their pods carry the hash of a revision that is not in the file: nobody may take them for old ones.
        workload["spec"]["updateStrategy"] = {"type": "OnDelete"}
    for pod in by_kind["Pod"]:
        if pod["spec"].get("restartPolicy") in ("Never", "OnFailure"):
            # When it ends is in no snapshot; of a recording, whoever plays it knows.
            annotations = pod["metadata"].get("annotations") or {}
            pod["metadata"]["annotations"] = {**annotations, RUN_SECONDS: RUNS_ON}
    whole.objects = [obj for kind in KINDS for obj in by_kind[kind]]
    _settle_owners(whole)
    return whole


def _is_over(obj: Object) -> bool:
    """Ended, going, or kept only for its history: it holds nothing."""
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
    # Whoever else would take a finalizer away is not here.
    metadata["finalizers"] = [
        name for name in metadata.get("finalizers") or () if name == job_rules.FINALIZER
    ]
    kept = {**obj, "metadata": _at_new_times(metadata, taken_at, now), "spec": dict(obj.get("spec") or {})}
    if isinstance(obj.get("status"), dict):
        kept["status"] = _at_new_times(obj["status"], taken_at, now)
    return kept


def _at_new_times(value: Any, taken_at: float, now: float) -> Any:
    """A copy in which every time is as long ago as it was. Heartbeats are left out: no kubelet here goes on
    with them, and one that has stopped is a node that is lost."""
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
    """What cannot be read, or lies ahead, is now: nothing of a file has yet to happen."""
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
    """The machine that a node runs on; None where the catalogue has no such offer."""
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
        return claim  # the pool cannot be read, and launches nothing
    annotations = claim["metadata"].setdefault("annotations", {})
    recorded = (pool["metadata"].get("annotations") or {}).get(HASH)
    if recorded is None or annotations.get(HASH) in (None, recorded):
        annotations |= {HASH: current, HASH_VERSION: VERSION}
    return claim


def _settle_owners(whole: RestoredCluster) -> None:
    """Owners that are not in the file would be taken for deleted, and what they own with them."""
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
