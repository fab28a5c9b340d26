"""Words for stories about clusters that live."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, NODECLAIMS, NODES, PODS
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.fleet_file import ClusterSpec
from karpool_fleet.clusters.live import LiveCluster

T = TypeVar("T")
Object = dict[str, Any]


def play(story: Callable[[LiveCluster], Awaitable[T]], *objects: Object, **spec: Any) -> T:
    """One cluster with these objects, on manual time."""

    async def main() -> T:
        cluster = LiveCluster(ClusterSpec(name="east", objects=list(objects), **spec), clock=LoopClock())
        async with cluster.running():
            await cluster.load(Path())
            return await story(cluster)

    return run_manual(main())


def pool(
    name: str, *, weight: int | None = None, limits: dict[str, str] | None = None, **values: list[str]
) -> Object:
    """Requirements by the last part of their key: `category=["c"]`, `type=[...]`, `zone=[...]`."""
    keys = {
        "category": "karpenter.k8s.aws/instance-category",
        "type": "node.kubernetes.io/instance-type",
        "zone": "topology.kubernetes.io/zone",
        "capacity": "karpenter.sh/capacity-type",
    }
    spec: Object = {
        "template": {
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [
                    {"key": keys[each], "operator": "In", "values": chosen} for each, chosen in values.items()
                ],
            }
        }
    }
    if weight is not None:
        spec["weight"] = weight
    if limits is not None:
        spec["limits"] = limits
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}


def deployment(
    name: str, replicas: int, *, cpu: str = "500m", memory: str = "512Mi", **pod_spec: Any
) -> Object:
    labels = {"app": name}
    container = {
        "name": "main",
        "image": f"{name}:1",
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], **pod_spec}},
        },
    }


def budget(app: str, **spec: Any) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
    }


async def nodes(cluster: LiveCluster) -> list[Node]:
    return (await cluster.embedded.client("reader").list(NODES, into=Node)).items


async def claims(cluster: LiveCluster) -> list[NodeClaim]:
    return (await cluster.embedded.client("reader").list(NODECLAIMS, into=NodeClaim)).items


async def pods(cluster: LiveCluster) -> list[Pod]:
    return (await cluster.embedded.client("reader").list(PODS, into=Pod)).items


async def ready(cluster: LiveCluster, name: str) -> int:
    found = await cluster.embedded.client("reader").get(DEPLOYMENTS, name, namespace="default")
    return int(found.get("status", {}).get("readyReplicas", 0))


async def until(condition: Callable[[], Awaitable[bool]], *, within: float) -> bool:
    """Look every simulated second; False when the time is up."""
    for _ in range(int(within)):
        if await condition():
            return True
        await asyncio.sleep(1)
    return False
