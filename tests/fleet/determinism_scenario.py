"""A busy hour of 200 nodes; prints a digest of every object that it ends with. Run as a program."""

import asyncio
import hashlib
import sys
from random import Random

from karpool.model.kubernetes.api_resources import DEPLOYMENTS, NODECLAIMS, NODEPOOLS
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.cloud.cloud import Cloud
from karpool_fleet.cluster_autoscaler.controller import cluster_autoscaler
from karpool_fleet.cluster_autoscaler.groups import NodeGroup
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.karpenter import karpenter_components
from karpool_fleet.kube_controllers.node_lifecycle import node_lifecycle
from karpool_fleet.kube_scheduler.scheduler import kube_scheduler
from karpool_fleet.kubelet.kubelet import kubelet
from karpool_fleet.workloads import workload_components
from tests.fleet.invariants import dump
from tests.fleet.random_life import Object, catalogue, pool

NODES = 200


def deployment(name: str, replicas: int, **spec: Object | list[Object]) -> Object:
    labels = {"app": name}
    container = {
        "name": "main",
        "image": f"{name}:1",
        "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}},
    }
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}},
        },
    }


async def hour(seed: int) -> tuple[int, bytes]:
    """How many nodes there were at most, and everything in the end."""
    clock, draw = LoopClock(), Random(seed)
    async with EmbeddedCluster("east", clock=clock, seed=seed, crds=bundled_crds(KARPENTER)) as cluster:
        cloud = Cloud(catalogue(), clock, cluster.random("cloud"))
        for name, build in {
            **workload_components(),
            "kube-scheduler": kube_scheduler(),
            "kubelet": kubelet(cloud),
            "node-lifecycle": node_lifecycle(cloud),
            **karpenter_components(cloud),
            "cluster-autoscaler": cluster_autoscaler(
                cloud, [NodeGroup("fixed", "large", min_size=5, max_size=5)]
            ),
        }.items():
            cluster.add(name, build)
        admin = cluster.client("admin")
        await admin.create(NODEPOOLS, pool("small", ("small",)))
        labels = {"matchLabels": {"app": "spread"}}
        rule: Object = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "labelSelector": labels}
        rule["whenUnsatisfiable"] = "DoNotSchedule"
        await admin.create(DEPLOYMENTS, deployment("plain", NODES - 60))
        await admin.create(DEPLOYMENTS, deployment("spread", 90, topologySpreadConstraints=[rule]))
        await asyncio.sleep(600)
        most = len(cloud.instances)
        spot = [
            instance.id for instance in cloud.instances.values() if instance.offer.capacity_type == "spot"
        ]
        for name in draw.sample(spot, 10):
            cloud.interrupt(name, notice_seconds=60)
        await cluster.components.crash("karpenter")
        await asyncio.sleep(90)
        cluster.components.start("karpenter")
        for claim in draw.sample((await admin.list(NODECLAIMS)).items, 5):
            await admin.delete(NODECLAIMS, claim["metadata"]["name"])
        await admin.scale(DEPLOYMENTS, "plain", 100, namespace="default")
        await asyncio.sleep(1200)
        return most, dump(cluster.server)


if __name__ == "__main__":
    nodes, everything = run_manual(hour(int(sys.argv[1])))
    sys.stdout.write(f"{nodes} {len(everything)} {hashlib.sha256(everything).hexdigest()}\n")
