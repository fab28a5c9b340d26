"""Packing pending pods onto new nodes: the mix of Karpenter's own scheduling benchmark.

Pods are one sixth each plain, spread over zones, spread over hosts, with affinity to
a zone, with affinity to a host, and with anti-affinity on hosts, sizes and labels at
random with a fixed seed; 400 instance types of i cpu, 2i GiB and 10i pods in three
zones, spot and on demand. A second input has many workloads, each with constraints of
its own, and a cluster of nodes to fill first.

The input is the same in every run and so is the packing; on a shared machine the rate
still varies threefold, so compare versions by running them in turns.
"""

import random
from time import perf_counter
from typing import Any

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.karpenter.objects import ON_DEMAND, SPOT, CompiledPool
from karpool.model.kubernetes.node import ARCH, HOSTNAME, OS, ZONE
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.pack import pack_new_nodes
from karpool.packing.new_nodes.pack_result import PackResult, PendingPod
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of

ZONES = ("test-zone-1", "test-zone-2", "test-zone-3")
CPU_MILLI = (100, 250, 500, 1000, 1500)
MEMORY_MIB = (100, 256, 512, 1024, 2048, 4096)
LABELS = ("a", "b", "c", "d", "e", "f", "g")


def instance_types(count: int) -> list[InstanceType]:
    return [_instance_type(size) for size in range(1, count + 1)]


def _instance_type(size: int) -> InstanceType:
    capacity = {"cpu": size * 1000, "memory": 2 * size << 30, "pods": 10 * size}
    price = 0.02 * size + 0.002 * 2 * size
    offerings = tuple(
        Offering(zone, kind, price * (1.0 if kind == ON_DEMAND else 0.7))
        for zone in ZONES
        for kind in (SPOT, ON_DEMAND)
    )
    labels = {ARCH: ValueSet(frozenset(("amd64",))), OS: ValueSet(frozenset(("linux",)))}
    allocatable = {**capacity, "cpu": size * 1000 - 100, "memory": (2 * size << 30) - (10 << 20)}
    return InstanceType(f"fake-it-{size}", labels, capacity, allocatable, offerings)


def diverse_pods(count: int, seed: int = 42) -> list[PendingPod]:
    chance = random.Random(seed)
    kinds = (_plain, _zone_spread, _host_spread, _zone_affinity, _host_affinity, _host_anti_affinity)
    pods = []
    for number in range(count):
        requests = (("cpu", chance.choice(CPU_MILLI)), ("memory", chance.choice(MEMORY_MIB) << 20))
        shape = kinds[number * len(kinds) // count](chance, requests)
        pods.append(PendingPod(f"default/pod-{number}", shape, uid=f"{number:06}"))
    return pods


Requests = tuple[tuple[str, int], ...]


def _selector(key: str, value: str) -> LabelMatcher:
    return LabelMatcher((LabelRequirement(key, "In", frozenset((value,))),))


def _labelled(chance: random.Random, requests: Requests, **constraints: Any) -> PodShape:
    labels = (("my-label", chance.choice(LABELS)),)
    return PodShape(requests=requests, namespace="default", labels=labels, **constraints)


def _plain(chance: random.Random, requests: Requests) -> PodShape:
    return _labelled(chance, requests)


def _spread(chance: random.Random, requests: Requests, key: str) -> PodShape:
    spread = TopologySpread(1, key, True, _selector("my-label", chance.choice(LABELS)))
    return _labelled(chance, requests, spreads=(spread,))


def _zone_spread(chance: random.Random, requests: Requests) -> PodShape:
    return _spread(chance, requests, ZONE)


def _host_spread(chance: random.Random, requests: Requests) -> PodShape:
    return _spread(chance, requests, HOSTNAME)


def _affinity(chance: random.Random, requests: Requests, key: str) -> PodShape:
    value = chance.choice(LABELS)
    label = f"my-affinity-{key.rpartition('/')[2]}"
    term = AffinityTerm(_selector(label, value), key, frozenset(("default",)))
    return PodShape(requests=requests, namespace="default", labels=((label, value),), affinity=(term,))


def _zone_affinity(chance: random.Random, requests: Requests) -> PodShape:
    return _affinity(chance, requests, ZONE)


def _host_affinity(chance: random.Random, requests: Requests) -> PodShape:
    return _affinity(chance, requests, HOSTNAME)


def _host_anti_affinity(chance: random.Random, requests: Requests) -> PodShape:
    term = AffinityTerm(_selector("app", "nginx"), HOSTNAME, frozenset(("default",)))
    return PodShape(requests=requests, namespace="default", labels=(("app", "nginx"),), anti_affinity=(term,))


def pack(count: int, types: int = 400) -> tuple[PackResult, float]:
    """A packing from scratch, and the seconds it took; building the input is not counted."""
    catalogue = Catalogue("test", "test", instance_types(types))
    pods, snapshot, pools = diverse_pods(count), snapshot_of(()), [CompiledPool("default")]
    start = perf_counter()
    packing = pack_new_nodes(snapshot, pods, pools, catalogue)
    return packing, perf_counter() - start


def workload_shapes(count: int, seed: int = 3) -> list[PodShape]:
    """Spread over zones, every other one also apart on hosts, each by its own label."""
    chance = random.Random(seed)
    shapes = []
    for number in range(count):
        own = _selector("app", f"w{number}")
        term = AffinityTerm(own, HOSTNAME, frozenset(("default",)))
        requests = (("cpu", chance.choice(CPU_MILLI)), ("memory", chance.choice(MEMORY_MIB) << 20))
        labels = (("app", f"w{number}"), ("tier", "web"))
        shapes.append(
            PodShape(
                requests=requests,
                namespace="default",
                labels=labels,
                spreads=(TopologySpread(1, ZONE, True, own),),
                anti_affinity=(term,) if number % 2 else (),
            )
        )
    return shapes


def pack_workloads(workloads: int, replicas: int, nodes: int) -> float:
    """Seconds to pack onto nodes that hold ten pods each, and new ones."""
    chance, state, shapes = random.Random(3), ClusterRoom(), workload_shapes(workloads)
    for number in range(nodes):
        labels = {HOSTNAME: f"n{number:05}", ZONE: ZONES[number % len(ZONES)]}
        state.put_node(NodeRow(f"n{number:05}", labels, (), {"cpu": 4000, "memory": 16 << 30, "pods": 110}))
    for number in range(nodes * 10):
        state.put_pod(f"default/b{number}", shapes[number % workloads], f"n{chance.randrange(nodes):05}")
    pods = [
        PendingPod(f"default/w{number}-{replica}", shape, uid=f"{number}-{replica}")
        for number, shape in enumerate(shapes)
        for replica in range(replicas)
    ]
    snapshot, catalogue = state.snapshot(), Catalogue("test", "test", instance_types(400))
    start = perf_counter()
    pack_new_nodes(snapshot, pods, [CompiledPool("default")], catalogue)
    return perf_counter() - start


def benchmarks() -> list[dict[str, Any]]:
    found = []
    for count, target in ((1000, None), (5000, 2000), (20000, None)):
        rates = [count / pack(count)[1] for _ in range(5)]
        name = f"pack_new_nodes: {count} diverse pods, 400 instance types"
        found.append({"name": name, "unit": "pods/s", "values": rates, "target": target})
    rates = [5000 / pack_workloads(500, 10, 2000) for _ in range(5)]
    name = "pack_new_nodes: 500 workloads of 10 pods, 2,000 nodes"
    found.append({"name": name, "unit": "pods/s", "values": rates, "target": None})
    return found


if __name__ == "__main__":
    for entry in benchmarks():
        print(entry["name"], [round(value) for value in entry["values"]], entry["unit"])
