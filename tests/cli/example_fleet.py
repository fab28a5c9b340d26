"""A small fleet to look at: two pools, seven nodes, four workloads, one pod that fits nowhere.

Only objects; nothing here runs them. Shapes come from the catalogue, so that the
nodes are the machines their type says they are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from karpool.model import resources
from karpool.model.catalogue.catalogue import Catalogue, InstanceType
from karpool_fleet.cloud.cloud import CloudOffer, offer_labels

Object = dict[str, Any]


@dataclass(frozen=True)
class _Machine:
    pool: str
    type: str
    zone: str
    capacity_type: str


@dataclass(frozen=True)
class _Workload:
    namespace: str
    name: str
    requests: Mapping[str, str]
    machines: tuple[int, ...]  # where each replica runs
    pending: int = 0  # replicas that run nowhere


_MACHINES = (
    _Machine("general", "m7i.2xlarge", "a", "on-demand"),
    _Machine("general", "m7i.2xlarge", "b", "on-demand"),
    _Machine("general", "m7i.2xlarge", "c", "on-demand"),
    _Machine("general", "c7i.xlarge", "a", "spot"),
    _Machine("general", "c7i.xlarge", "b", "spot"),
    _Machine("general", "r7i.xlarge", "c", "spot"),
    _Machine("gpu", "g6.xlarge", "a", "on-demand"),
)
_WORKLOADS = (
    _Workload("shop", "web", {"cpu": "500m", "memory": "512Mi"}, (0, 1, 2, 3, 4, 0)),
    _Workload("shop", "api", {"cpu": "1", "memory": "2Gi"}, (0, 1, 2, 1)),
    _Workload("shop", "cache", {"cpu": "500m", "memory": "8Gi"}, (5, 2)),
    _Workload("ml", "embeddings", {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "1"}, (6,), pending=1),
)
_GPU_TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}


def example_fleet(catalogue: Catalogue) -> list[Object]:
    """In an order in which an API server accepts them."""
    zones = sorted(catalogue.zones)
    nodes = [
        _node(machine, catalogue.types[machine.type], zones["abc".index(machine.zone)], index)
        for index, machine in enumerate(_MACHINES)
    ]
    names = [node["metadata"]["name"] for node in nodes]
    return [
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("shop", "ml")),
        _pool("general", limits={"cpu": "64", "memory": "256Gi"}, categories=["c", "m", "r"]),
        _pool("gpu", limits={"nvidia.com/gpu": "1"}, categories=["g"], taints=[_GPU_TAINT]),
        *nodes,
        *(each for workload in _WORKLOADS for each in _objects(workload, names)),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "api", "namespace": "shop"},
            "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "api"}}},
        },
    ]


def _node(machine: _Machine, type_: InstanceType, zone: str, index: int) -> Object:
    name = f"{machine.pool}-{index}"
    labels = {
        **offer_labels(type_, CloudOffer(machine.type, zone, machine.capacity_type)),
        "karpenter.sh/nodepool": machine.pool,
        "karpenter.sh/registered": "true",
        "karpenter.sh/initialized": "true",
        "kubernetes.io/hostname": name,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "providerID": f"embedded:///{zone}/{name}",
            **({"taints": [_GPU_TAINT]} if machine.pool == "gpu" else {}),
        },
        "status": {
            "capacity": resources.quantities(type_.capacity),
            "allocatable": resources.quantities(type_.allocatable),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.34.0", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def _pool(
    name: str, *, limits: Mapping[str, str], categories: list[str], taints: list[Object] | None = None
) -> Object:
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "limits": dict(limits),
            "template": {
                "spec": {
                    "nodeClassRef": {
                        "group": "karpenter.kwok.sh",
                        "kind": "KWOKNodeClass",
                        "name": "default",
                    },
                    "requirements": [
                        {
                            "key": "karpenter.k8s.aws/instance-category",
                            "operator": "In",
                            "values": categories,
                        },
                        {
                            "key": "karpenter.sh/capacity-type",
                            "operator": "In",
                            "values": ["spot", "on-demand"],
                        },
                    ],
                    **({"taints": taints} if taints else {}),
                }
            },
        },
    }


def _objects(workload: _Workload, nodes: list[str]) -> Iterator[Object]:
    labels = {"app": workload.name}
    meta = {"name": workload.name, "namespace": workload.namespace, "labels": labels}
    spec: Object = {
        "containers": [
            {
                "name": workload.name,
                "image": f"example.invalid/{workload.name}:1",
                "resources": {"requests": dict(workload.requests)},
            }
        ]
    }
    if "nvidia.com/gpu" in workload.requests:
        spec["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": workload.requests["nvidia.com/gpu"]}
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": len(workload.machines) + workload.pending,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    number = count()
    for machine in workload.machines:
        yield _pod(workload, spec, next(number), nodes[machine])
    for _ in range(workload.pending):
        yield _pod(workload, spec, next(number), None)


def _running(container: str) -> Object:
    return {"name": container, "ready": True, "restartCount": 0, "state": {"running": {}}}


def _pod(workload: _Workload, spec: Object, number: int, node: str | None) -> Object:
    running = [
        {"type": kind, "status": "True"}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    waiting = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/7 nodes are available: 6 Insufficient nvidia.com/gpu, 1 node is full",
        }
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{workload.name}-{number}",
            "namespace": workload.namespace,
            "labels": {"app": workload.name},
        },
        "spec": {**spec, **({"nodeName": node} if node else {})},
        "status": {
            "phase": "Running" if node else "Pending",
            "conditions": running if node else waiting,
            **({"containerStatuses": [_running(workload.name)]} if node else {}),
        },
    }
