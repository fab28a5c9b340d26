"""Bindings and clusters as raw objects, for tests of decisions; what a test does not say does not matter."""

from typing import Any

from karpool.model.karmada.binding import Binding, read_binding
from karpool.model.karmada.member_cluster import MemberCluster, read_cluster
from karpool.scheduler.cycle.decision import ClusterAvailability

Object = dict[str, Any]

DIVIDED = {"replicaSchedulingType": "Divided"}
DUPLICATED: Object = {"replicaSchedulingType": "Duplicated"}
AGGREGATED: Object = {**DIVIDED, "replicaDivisionPreference": "Aggregated"}
STATIC: Object = {**DIVIDED, "replicaDivisionPreference": "Weighted"}
DYNAMIC: Object = {**STATIC, "weightPreference": {"dynamicWeight": "AvailableReplicas"}}
POLICY = {"propagationpolicy.karmada.io/permanent-id": "p"}


def raw_cluster(name: str, **given: Any) -> Object:
    """`given` is what the cluster says of itself, under the names below."""
    meta: Object = {"name": name, "labels": given.get("labels") or {}}
    if given.get("deleting"):
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if given.get("price") is not None:
        meta["annotations"] = {"karpool.dev/price": str(given["price"])}
    served = given.get("apis", (("apps/v1", "Deployment"),))
    return {
        "metadata": meta,
        "spec": {
            "region": given.get("region", ""),
            "provider": given.get("provider", ""),
            "zones": given.get("zones"),
            "taints": given.get("taints"),
            "resourceModels": given.get("models"),
        },
        "status": {
            "apiEnablements": [{"groupVersion": gv, "resources": [{"kind": kind}]} for gv, kind in served],
            "conditions": [{"type": "Ready", "status": "True" if given.get("ready", True) else "False"}],
            "resourceSummary": given.get("summary"),
        },
    }


def cluster(name: str, **given: Any) -> MemberCluster:
    return read_cluster(raw_cluster(name, **given))


def clusters(*names: str, **given: Any) -> list[MemberCluster]:
    return [cluster(name, **given) for name in names]


def raw_binding(replicas: int = 0, scheduling: Object | None = None, **given: Any) -> Object:
    """`previous` and `available` are dicts by cluster; `placement` holds further fields of the placement."""
    placement = {**(given.get("placement") or {})}
    if scheduling is not None:
        placement["replicaScheduling"] = scheduling
    spec: Object = {
        "resource": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "web",
            "uid": given.get("uid", ""),
        },
        "placement": placement,
        "replicas": replicas,
        "clusters": [
            {"name": name, "replicas": held} for name, held in (given.get("previous") or {}).items()
        ],
        "gracefulEvictionTasks": [{"fromCluster": name} for name in given.get("evicting") or ()],
        **(given.get("spec") or {}),
    }
    if given.get("workload", True):
        spec.setdefault("replicaRequirements", {"resourceRequest": {"cpu": "1"}})
    meta = {"namespace": "default", "name": "web-deployment", "labels": POLICY, "generation": 1}
    return {
        "metadata": {**meta, **(given.get("meta") or {})},
        "spec": spec,
        "status": given.get("status") or {},
    }


def binding(replicas: int = 0, scheduling: Object | None = None, **given: Any) -> Binding:
    return read_binding(raw_binding(replicas, scheduling, **given))


def rooms(**available: int) -> dict[str, ClusterAvailability]:
    return {name: ClusterAvailability(replicas, "test") for name, replicas in available.items()}
