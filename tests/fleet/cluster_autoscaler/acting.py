"""A cluster with node groups: a real scheduler, kubelets and workload controllers, and a cloud."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import yaml

from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.errors import NotFound
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.kubernetes.api_resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, NODES, PODS, ListOptions
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.requirements import ValueSet
from karpool_fleet.cloud.cloud import Cloud, CloudSettings, Instance
from karpool_fleet.cloud.delays import constant
from karpool_fleet.cluster_autoscaler.controller import cluster_autoscaler
from karpool_fleet.cluster_autoscaler.groups import GROUP_TAG, AutoscalerSettings, NodeGroup
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.kube_scheduler.scheduler import kube_scheduler
from karpool_fleet.kubelet.kubelet import KubeletSettings, kubelet
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.workloads import workload_components

CATALOGUE_ZONES = ("a", "b")
BOOT_SECONDS = 30.0


def machine(name: str, cpu: int, gib: int, *, gpus: int = 0) -> InstanceType:
    room = {"cpu": cpu * 1000, "memory": gib << 30, "pods": 110}
    if gpus:
        room["nvidia.com/gpu"] = gpus
    offerings = [Offering(zone, kind, cpu / 10) for zone in CATALOGUE_ZONES for kind in ("on-demand", "spot")]
    bare = InstanceType(name, {"kubernetes.io/arch": ValueSet(frozenset(("amd64",)))}, room, dict(room))
    return bare.sold_as(offerings)


MACHINES = (machine("small", 2, 8), machine("large", 8, 32), machine("accelerated", 4, 16, gpus=1))


class NodeCollector:
    """What a cloud controller does: nodes whose machine is gone are deleted."""

    def __init__(self, context: Context, cloud: Cloud) -> None:
        self._client = context.client
        self._cloud = cloud
        self._gone: asyncio.Queue[str] = asyncio.Queue()

    async def run(self) -> None:
        self._cloud.subscribe(self._heard)
        while True:
            name = await self._gone.get()
            try:
                await self._client.delete(NODES, name)
            except NotFound:
                continue

    def _heard(self, instance: Instance) -> None:
        if instance.state == "terminated":
            self._gone.put_nowait(instance.id)


@dataclass
class Stage:
    cluster: EmbeddedCluster
    cloud: Cloud
    client: Client

    def machines(self, group: str) -> list[Instance]:
        return [
            instance for instance in self.cloud.instances.values() if instance.tags.get(GROUP_TAG) == group
        ]

    async def nodes(self) -> list[Node]:
        return (await self.client.list(NODES, into=Node)).items

    async def pods(self, *, on_nodes: bool | None = None) -> list[Pod]:
        every = (await self.client.list(PODS, ListOptions("default"), into=Pod)).items
        return [pod for pod in every if on_nodes is None or bool(pod.spec.node_name) == on_nodes]

    async def status(self) -> Any:
        found = await self.client.get(CONFIGMAPS, "cluster-autoscaler-status", namespace="kube-system")
        return yaml.safe_load(found["data"]["status"])

    async def group(self, name: str) -> Any:
        return next(each for each in (await self.status())["nodeGroups"] if each["name"] == name)

    async def reasons(self, kind: str) -> dict[str, list[str]]:
        """Messages of the autoscaler's events about a kind, by reason."""
        found: dict[str, list[str]] = {}
        for event in (await self.client.list(EVENTS)).items:
            if event["source"]["component"] == "autoscaler" and event["involvedObject"]["kind"] == kind:
                found.setdefault(event["reason"], []).append(event["message"])
        return found

    async def deploy(self, name: str, replicas: int, requests: Mapping[str, str], **spec: Any) -> None:
        annotations = spec.pop("annotations", {})
        labels = {"app": name}
        await self.client.create(
            DEPLOYMENTS,
            {
                "metadata": {"name": name, "namespace": spec.pop("namespace", "default")},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels, "annotations": annotations},
                        "spec": {
                            "containers": [
                                {"name": "main", "image": "main:1", "resources": _resources(requests)}
                            ],
                            **spec,
                        },
                    },
                },
            },
        )

    async def scale(self, name: str, replicas: int) -> None:
        await self.client.scale(DEPLOYMENTS, name, replicas, namespace="default")


def _resources(requests: Mapping[str, str]) -> Object:
    limits = {name: amount for name, amount in requests.items() if "/" in name}
    return {"requests": dict(requests), **({"limits": limits} if limits else {})}


@asynccontextmanager
async def stage(
    groups: Sequence[NodeGroup], settings: AutoscalerSettings | None = None, *, seed: int = 0
) -> AsyncIterator[Stage]:
    clock = LoopClock()
    instant = CloudSettings(launch=constant(2), terminate=constant(2))
    cloud = Cloud(Catalogue("test", "here", MACHINES), clock, Random(seed), instant)
    boot = KubeletSettings(
        register=constant(20), ready=constant(10), devices=constant(15), pull=constant(0), start=constant(1)
    )
    async with EmbeddedCluster("east", clock=clock, seed=seed) as cluster:
        for name, build in workload_components().items():
            cluster.add(name, build)
        cluster.add("scheduler", kube_scheduler())
        cluster.add("kubelet", kubelet(cloud, boot))
        cluster.add("collector", lambda context: NodeCollector(context, cloud))
        cluster.add("autoscaler", cluster_autoscaler(cloud, groups, settings))
        yield Stage(cluster, cloud, cluster.client("admin"))
