"""Whatever is written, the state that informers keep is the state that a fresh list gives."""

import asyncio
import random

import pytest

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.errors import StatusError
from karpool.kube.transport.rest import NEVER
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer import Informer
from karpool.model.kubernetes.api_resources import NAMESPACES, NODES, PODS, PVCS, PVS, STORAGECLASSES
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.cluster.views import described, pending
from tests.kube.both_transports import BOTH, running
from tests.kube.handlers import Handlers

ASPECTS = Aspect.NAMESPACES | Aspect.VOLUMES
WRITTEN = (NAMESPACES, NODES, PODS, PVCS, PVS, STORAGECLASSES)
ZONES = ["a", "b"]
LAST = "zz"
TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}


@pytest.fixture(params=BOTH.values(), ids=BOTH)
async def client(request):
    async with request.param(ApiServer(RealClock())) as transport:
        yield Client(transport, name="test", qps=None, retry=NEVER)


class Writer:
    """Makes up changes; those that the server refuses, because of changes before, are no matter."""

    def __init__(self, client, seed):
        self.client = client
        self.draw = random.Random(seed)
        self.refused = 0

    async def write(self, count):
        changes = [
            *(3 * [self.put_pod, self.bind_pod, self.delete_pod]),
            *(self.put_node, self.put_node, self.change_node, self.change_node, self.delete_node),
            *(self.end_pod, self.label_pod, self.put_claim, self.delete_claim, self.put_volume),
            *(self.label_namespace, self.put_class),
        ]
        for _ in range(count):
            try:
                await self.draw.choice(changes)()
            except StatusError:
                self.refused += 1

    async def put_node(self):
        cpu, pods = self.draw.choice(["2", "3500m", "16"]), self.draw.choice(["3", "110"])
        labels = {"topology.kubernetes.io/zone": self.draw.choice(ZONES), "disk": self.draw.choice("sf")}
        status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": pods}}
        await self.client.create(NODES, {"metadata": self.meta("n", 6, labels), "status": status})

    async def change_node(self):
        change = self.draw.choice(
            [
                {"spec": {"unschedulable": self.draw.choice([True, None])}},
                {"spec": {"taints": self.draw.choice([[TAINT], None])}},
                {"metadata": {"labels": {"disk": self.draw.choice(["s", None]), "size": "big"}}},
            ]
        )
        await self.client.patch(NODES, self.name("n", 6), change)

    async def delete_node(self):
        await self.client.delete(NODES, self.name("n", 6))

    async def put_pod(self):
        requests = {"cpu": self.draw.choice(["100m", "1"]), "memory": self.draw.choice(["64Mi", "1Gi"])}
        container = {"name": "c", "image": "i", "resources": {"requests": requests}}
        spec = {"containers": [container]}
        if self.draw.random() < 0.4:
            spec["nodeName"] = self.name("n", 6)
        if self.draw.random() < 0.4:
            claim = {"claimName": self.name("c", 3)}
            spec["volumes"] = [{"name": "v", "persistentVolumeClaim": claim}]
        labels = {"app": self.draw.choice(["web", "api"])}
        await self.client.create(PODS, {"metadata": self.meta("p", 20, labels, "default"), "spec": spec})

    async def bind_pod(self):
        await self.client.bind(self.name("p", 20), self.name("n", 6), namespace="default")

    async def end_pod(self):
        phase = self.draw.choice(["Running", "Succeeded", "Failed"])
        await self.client.patch(
            PODS, self.name("p", 20), {"status": {"phase": phase}}, namespace="default", subresource="status"
        )

    async def label_pod(self):
        change = {"metadata": {"labels": {"app": self.draw.choice(["web", "api", None])}}}
        await self.client.patch(PODS, self.name("p", 20), change, namespace="default")

    async def delete_pod(self):
        grace = self.draw.choice([0, 0, None])
        await self.client.delete(PODS, self.name("p", 20), namespace="default", grace_seconds=grace)

    async def put_claim(self):
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "zonal",
            "volumeName": self.draw.choice(["", "v0", "v1"]),
        }
        await self.client.create(PVCS, {"metadata": self.meta("c", 3, {}, "default"), "spec": spec})

    async def delete_claim(self):
        await self.client.delete(PVCS, self.name("c", 3), namespace="default")

    async def put_volume(self):
        zone = {
            "key": "topology.kubernetes.io/zone",
            "operator": "In",
            "values": [self.draw.choice(ZONES)],
        }
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/x"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}},
        }
        await self.client.create(PVS, {"metadata": self.meta("v", 2, {}), "spec": spec})

    async def put_class(self):
        mode = self.draw.choice(["WaitForFirstConsumer", "Immediate"])
        fields = {"provisioner": "example.invalid/x", "volumeBindingMode": mode}
        await self.client.create(STORAGECLASSES, {"metadata": {"name": "zonal"}, **fields})

    async def label_namespace(self):
        change = {"metadata": {"labels": {"team": self.draw.choice(["x", "y", None])}}}
        await self.client.patch(NAMESPACES, "default", change)

    def name(self, prefix, count):
        return f"{prefix}{self.draw.randrange(count)}"

    def meta(self, prefix, count, labels, namespace=None):
        meta = {"name": self.name(prefix, count), "labels": labels}
        return {**meta, "namespace": namespace} if namespace else meta


def informers_into(cluster, client):
    informers = []
    for watched in cluster_watches(cluster, RealClock()):
        if watched.resource in WRITTEN:
            informers.append(Informer(client, watched.resource, into=watched.into, keep=False))
            informers[-1].add_sink(watched.sink)
    return informers


async def write_last(client):
    """One object of each kind; who has seen these has seen all that was written before."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    bodies = {
        PODS: {"spec": {"containers": [{"name": "c", "image": "i"}]}},
        PVCS: {"spec": claim},
        PVS: {"spec": volume},
        STORAGECLASSES: {"provisioner": "example.invalid/x"},
    }
    for resource in WRITTEN:
        meta = {"name": LAST, **({"namespace": "default"} if resource.namespaced else {})}
        await client.create(resource, {"metadata": meta, **bodies.get(resource, {})})


def last_seen(informer):
    seen = asyncio.Event()
    informer.add_sink(Handlers(on_add=lambda obj: seen.set() if obj.name == LAST else None))
    return seen.wait()


async def freshly_listed(client):
    cluster = Cluster(ASPECTS)
    for resource in WRITTEN:
        cluster.load(
            [raw | {"kind": resource.kind} for raw in (await client.list(resource, into=dict)).items], 0.0
        )
    return cluster.room.snapshot()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_after_any_writes_informers_and_a_fresh_list_agree(client, seed):
    writer = Writer(client, seed)
    cluster = Cluster(ASPECTS)
    await writer.write(40)
    informers = informers_into(cluster, client)
    async with running(*(informer.run() for informer in informers)):
        await writer.write(120)
    await writer.write(40)  # nobody listens; deletions must be found out
    seen = [last_seen(informer) for informer in informers]
    async with running(*(informer.run() for informer in informers)):
        await writer.write(120)
        await write_last(client)
        await asyncio.gather(*seen)

    kept, fresh = cluster.room.snapshot(), await freshly_listed(client)
    assert described(kept) == described(fresh)
    assert pending(kept) == pending(fresh)
    assert kept.namespaces == fresh.namespaces
    assert list(cluster.problems) == []
    assert len(fresh.names) > 1 and fresh.pending and writer.refused < 250
