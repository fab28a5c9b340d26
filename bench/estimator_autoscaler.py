"""The Karpenter provider next to a large cluster: 20 NodePools over 700 instance types.

5,000 nodes that belong to the pools, with their claims, and 50,000 pods. In one process:
what is measured is the provider's answer, without decoding and gRPC. Every request is
different (its CPU request is), so nothing but what the pools may launch is remembered.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from bench import cluster
from karpool.cluster import kinds
from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ClusterKind
from karpool.cluster.market.market import Market
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.plugins.interface import Estimate
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.question import EstimateQuestion
from karpool.kube.clock import RealClock
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.catalogue.files import load_shipped
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL, NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE, Node
from karpool.model.kubernetes.times import rfc3339
from karpool.packing.tables.room import Room, snapshot_of
from karpool.wire.requests import AssumedWorkload, ComponentSetsRequest, ReplicasRequest

POOLS, TYPES, NODES, PODS = 20, 700, 5000, 50_000
REQUESTS = 300
PROMISES, TEMPLATES, PROMISED_POOLS = 500, 25, 3
CATEGORIES = ("c", "m", "r", "g", "t")
Ask = Callable[[EstimateQuestion], Estimate]


def catalogue() -> Catalogue:
    whole = load_shipped("us-east-1")
    return Catalogue("aws", "us-east-1", list(whole.types.values())[:TYPES])


def node_pool(number: int) -> NodePool:
    """Every fourth without limits, every fifth for one kind of machine only."""
    wanted = [{"key": CAPACITY_TYPE, "operator": "In", "values": ["spot", "on-demand"][: 1 + number % 2]}]
    if number % 5 == 0:
        key = "karpenter.k8s.aws/instance-category"
        wanted.append({"key": key, "operator": "In", "values": [CATEGORIES[number // 5 % 5]]})
    spec: dict[str, Any] = {"template": {"spec": {"requirements": wanted}}, "weight": 1 + number}
    if number % 4:
        spec["limits"] = {"cpu": str(20_000 + 37 * number), "memory": f"{80_000 + 211 * number}Gi"}
    return decode({"metadata": {"name": f"pool-{number}"}, "spec": spec}, NodePool)


def fed(picture: Cluster, room: Room, pools: int = POOLS) -> None:
    """The pools, and a claim and a node for every row of the room."""
    now = RealClock().now()
    created = rfc3339(now - 3600)

    def tell(kind: ClusterKind, namespace: str, name: str, told: Any) -> None:
        picture.apply(kind, [ObjectChange("ADDED", ObjectKey(namespace, name), told)], now)

    for number in range(pools):
        pool = node_pool(number)
        tell(kinds.NODEPOOLS, "", pool.name, pool)
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": created}
        for kind in ("Launched", "Registered", "Initialized")
    ]
    for number, name in enumerate(room.names):
        labels = {
            NODEPOOL: f"pool-{number % POOLS}",
            INSTANCE_TYPE: "m5.4xlarge",
            ZONE: "us-east-1a",
            CAPACITY_TYPE: "on-demand",
            "karpenter.sh/initialized": "true",
        }
        capacity = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        meta = {"name": name, "labels": labels, "creationTimestamp": created}
        status = {"capacity": capacity, "allocatable": capacity, "conditions": conditions}
        claim = {"metadata": meta, "status": {**status, "providerID": f"aws:///{name}"}}
        node = {"metadata": meta, "spec": {"providerID": f"aws:///{name}"}, "status": status}
        tell(kinds.NODECLAIMS, "", name, decode(claim, NodeClaim))
        tell(kinds.NODES, "", name, decode(node, Node))


def request(number: int) -> ReplicasRequest:
    amounts = {"cpu": f"{500 + number}m", "memory": "2Gi"}
    if number % 7 == 0:
        amounts["nvidia.com/gpu"] = "1"
    return ReplicasRequest("bench", requirements(amounts))


def timed(ask: Ask, snapshot: Snapshot, first: int) -> list[float]:
    """Milliseconds each."""
    found = []
    for number in range(first, first + REQUESTS):
        question = EstimateQuestion(request(number), snapshot)
        start = perf_counter()
        ask(question)
        found.append((perf_counter() - start) * 1000)
    return found


def timed_sets(provider: KarpenterProvider, snapshot: Snapshot) -> list[float]:
    found = []
    for number in range(20):
        parts = (
            Component("driver", 1, requirements({"cpu": f"{1000 + number}m", "memory": "2Gi"})),
            Component("worker", 10, requirements({"cpu": "2", "memory": f"{4000 + number}Mi"})),
        )
        question = EstimateQuestion(ComponentSetsRequest("bench", parts), snapshot)
        start = perf_counter()
        provider.estimate_components(question)
        found.append((perf_counter() - start) * 1000)
    return found


def timed_promises() -> list[float]:
    """A burst: before every question one more workload of some templates was promised."""
    provider = KarpenterProvider(RealClock())
    picture = Cluster(provider.aspects, market=Market(catalogue()), failures=provider.failures)
    fed(picture, snapshot_of(()), PROMISED_POOLS)
    snapshot = picture.snapshot(RealClock().now())
    needs = [requirements({"cpu": f"{250 + 10 * number}m", "memory": "1Gi"}) for number in range(TEMPLATES)]
    promised = [
        AssumedWorkload("bench", (Component("web", 1 + number % 3, needs[number % TEMPLATES]),))
        for number in range(PROMISES)
    ]
    values = []
    for number in range(-3, 100):
        question = EstimateQuestion(request(2000 + number), snapshot, promised[: PROMISES - 100 + number])
        start = perf_counter()
        provider.estimate(question)
        values.append((perf_counter() - start) * 1000)
    return values[3:]  # without those that compile the templates


def benchmarks() -> list[dict[str, Any]]:
    room = cluster.cluster(NODES, PODS).snapshot()
    provider = KarpenterProvider(RealClock())
    picture = Cluster(provider.aspects, market=Market(catalogue()), failures=provider.failures)
    start = perf_counter()
    fed(picture, room)
    snapshot = replace(picture.snapshot(RealClock().now()), room=room)
    feeding = (perf_counter() - start) * 1000
    start = perf_counter()
    provider.estimate(EstimateQuestion(request(0), snapshot))
    first = (perf_counter() - start) * 1000
    plugin = NodeAutoscalerEstimator([provider])
    what = f"{POOLS} pools x {TYPES} types, {NODES:,} nodes"
    return [
        {
            "name": f"provider, {what}",
            "unit": "ms",
            "values": timed(provider.estimate, snapshot, 1),
            "target": 5,
        },
        {
            "name": f"with existing nodes, {what}",
            "unit": "ms",
            "values": timed(plugin.estimate, snapshot, 1000),
            "target": 5,
        },
        {
            "name": f"component sets, {what}",
            "unit": "ms",
            "values": timed_sets(provider, snapshot),
            "target": 60,
        },
        {
            "name": f"{PROMISES} promises of {TEMPLATES} templates, {PROMISED_POOLS} pools x {TYPES} types",
            "unit": "ms",
            "values": timed_promises(),
            "target": 7,
        },
        {"name": "first answer: compile pools", "unit": "ms", "values": [first], "target": None},
        {
            "name": f"feed {NODES:,} claims and nodes, their room included",
            "unit": "ms",
            "values": [feeding],
            "target": None,
        },
    ]


if __name__ == "__main__":
    for entry in benchmarks():
        values = sorted(entry["values"])
        middle, late = values[len(values) // 2], values[int(len(values) * 0.99)]
        print(f"{entry['name']:60} p50 {middle:8.2f} p99 {late:8.2f} ms")
