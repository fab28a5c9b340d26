"""The stage of the chapters: every cluster through its API, as with kubectl."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.model.karmada.member_cluster import read_cluster
from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.api_resources import (
    CLUSTERS,
    DEPLOYMENTS,
    NODES,
    PODS,
    RESOURCEBINDINGS,
    ListOptions,
)
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.scheduler.estimates.estimator_client import EstimatorClient
from karpool.wire.client_protocol import ask_replicas
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.object_loader import load_objects
from karpool_fleet.clusters.wiring import Team

LOOK_SECONDS = 1.0  # interval of checks, in fleet time
Object = dict[str, Any]


@dataclass(frozen=True)
class TourStage:
    fleet: EmbeddedFleet
    karmada: Client
    members: Mapping[str, Client]
    team: Team
    estimators: EstimatorClient

    @property
    def clock(self) -> Clock:
        return self.fleet.clock

    async def until(self, is_so: Callable[[], Awaitable[bool]], *, within: float) -> bool:
        """Poll until the condition is true; return False after `within` seconds of fleet time."""
        deadline = self.clock.monotonic() + within
        while not await is_so():
            if self.clock.monotonic() >= deadline:
                return False
            await self.clock.sleep(LOOK_SECONDS)
        return True

    async def write(self, client: Client, *objects: Object) -> None:
        await load_objects(client, objects)

    # Objects of a member

    async def nodes(self, cluster: str, pool: str = "") -> list[Node]:
        chosen = ListOptions(label_selector=f"karpenter.sh/nodepool={pool}") if pool else ListOptions()
        return (await self.members[cluster].list(NODES, chosen, into=Node)).items

    async def pods(self, cluster: str, namespace: str, app: str = "") -> list[Pod]:
        """Return the pods that are not ending."""
        chosen = ListOptions(namespace=namespace, label_selector=f"app={app}" if app else "")
        pods = (await self.members[cluster].list(PODS, chosen, into=Pod)).items
        return [pod for pod in pods if not pod.is_terminating and not pod.is_terminal]

    async def ready(self, cluster: str, namespace: str, name: str) -> int:
        """Return the ready replicas of a Deployment; 0 if it does not exist."""
        return (await self.all_ready(cluster, namespace)).get(name, 0)

    async def all_ready(self, cluster: str, namespace: str) -> dict[str, int]:
        """Ready replicas of every Deployment of a namespace."""
        deployments = (await self.members[cluster].list(DEPLOYMENTS, ListOptions(namespace=namespace))).items
        return {
            str(obj["metadata"]["name"]): int((obj.get("status") or {}).get("readyReplicas") or 0)
            for obj in deployments
        }

    async def price_per_hour(self, cluster: str, pool: str = "") -> float:
        """Return the price of the current nodes, from the catalogue."""
        catalogue = self.fleet.clusters[cluster].catalogue
        total = 0.0
        for node in await self.nodes(cluster, pool):
            offer = (node.labels.get(key, "") for key in (INSTANCE_TYPE, ZONE, CAPACITY_TYPE))
            total += catalogue.price(*offer) or 0.0
        return total

    # Answers of Karpool

    async def room(self, cluster: str, *, cpu: str, memory: str) -> int:
        """Return the estimator's answer for replicas of this size, over gRPC as schedulers ask."""
        member = read_cluster(await self.karmada.get(CLUSTERS, cluster))
        requirements = ReplicaRequirements(resource_request={"cpu": cpu, "memory": memory})
        reply = await self.estimators.ask(member, ask_replicas(requirements))
        return reply.value or 0

    async def placed(self, namespace: str, name: str) -> dict[str, int]:
        """Return the replicas per cluster from the scheduler; empty before its decision."""
        return placed_by((await self.bindings(namespace)).get(name, {}))

    async def bindings(self, namespace: str) -> dict[str, Object]:
        """Return the bindings of the Deployments of a namespace, by name."""
        bindings = (await self.karmada.list(RESOURCEBINDINGS, ListOptions(namespace=namespace))).items
        return {str(binding["spec"]["resource"]["name"]): binding for binding in bindings}


def placed_by(binding: Object) -> dict[str, int]:
    targets = binding.get("spec", {}).get("clusters") or ()
    return {target["name"]: int(target.get("replicas") or 0) for target in targets}


def refusal_of(binding: Object) -> str:
    """Return why the scheduler found no cluster; empty if it did, or has not decided yet."""
    for condition in (binding.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Scheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason"))
    return ""


def each_of(counts: Mapping[str, int]) -> str:
    """Format counts, such as `oregon 5, virginia 3`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "nowhere"
