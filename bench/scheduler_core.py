"""The scheduler's arithmetic, without any I/O: division, whole decisions, estimates from summaries."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from random import Random
from typing import Any

from tests.scheduler.deciding import schedule

from bench.timing import timed
from karpool.model.karmada.binding import Binding, read_binding
from karpool.model.karmada.member_cluster import MemberCluster, read_cluster
from karpool.model.karmada.placement import ReplicaStrategy
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.scheduler.cycle.assignment import AssignmentTask, assign
from karpool.scheduler.cycle.decision import ClusterAvailability, ClusterCandidate, SchedulingMode
from karpool.scheduler.estimates import cluster_summary
from karpool.wire.requests import AssumedWorkload

CLUSTERS = 100
REPLICAS = 1000
UID = "d43fdeeb-d750-4e2b-bee3-64eb94534f4c"
AGGREGATED = {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"}
STATIC = {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted"}
DYNAMIC = {**STATIC, "weightPreference": {"dynamicWeight": "AvailableReplicas"}}
DUPLICATED = {"replicaSchedulingType": "Duplicated"}
BY_CLUSTER = {"spreadByField": "cluster", "minGroups": 1, "maxGroups": 10}
BY_REGION = {"spreadByField": "region", "minGroups": 2, "maxGroups": 3}


@cache
def clusters() -> list[MemberCluster]:
    random = Random(5)
    return [read_cluster(cluster(random, number)) for number in range(CLUSTERS)]


def cluster(random: Random, number: int) -> dict[str, Any]:
    nodes = random.randint(5, 500)
    sizes = ((0, 0), (1, 4), (2, 16), (4, 32), (8, 64), (16, 128), (32, 256), (64, 512), (128, 1024))
    models = [
        {"grade": grade, "ranges": [{"name": "cpu", "min": str(cpu)}, {"name": "memory", "min": f"{gib}Gi"}]}
        for grade, (cpu, gib) in enumerate(sizes)
    ]
    return {
        "metadata": {"name": f"member-{number:03}", "labels": {"tier": random.choice(("gold", "silver"))}},
        "spec": {
            "provider": random.choice(("aws", "gcp", "azure")),
            "region": f"region-{number % 8}",
            "zones": [f"region-{number % 8}{zone}" for zone in "abc"],
            "resourceModels": models,
        },
        "status": {
            "apiEnablements": [
                {"groupVersion": f"group{each}/v1", "resources": [{"kind": f"Kind{each}"}]}
                for each in range(60)
            ]
            + [{"groupVersion": "apps/v1", "resources": [{"kind": "Deployment"}]}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "resourceSummary": {
                "allocatable": {
                    "cpu": str(16 * nodes),
                    "memory": f"{64 * nodes}Gi",
                    "pods": str(110 * nodes),
                },
                "allocated": {"cpu": str(4 * nodes), "memory": f"{8 * nodes}Gi", "pods": str(30 * nodes)},
                "allocatableModelings": [
                    {"grade": grade, "count": nodes // 4 if grade in (1, 2, 3, 4) else 0}
                    for grade in range(9)
                ],
            },
        },
    }


def binding(scheduling: Mapping[str, Any], *, replicas: int = REPLICAS, spread: Any = None) -> Binding:
    return read_binding(raw_binding(scheduling, replicas, spread))


def raw_binding(
    scheduling: Mapping[str, Any], replicas: int = REPLICAS, spread: Any = None
) -> dict[str, Any]:
    placement = {
        "clusterAffinity": {"labelSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}},
        "spreadConstraints": spread,
        "replicaScheduling": scheduling,
    }
    return {
        "metadata": {"namespace": "default", "name": "web-deployment", "generation": 1},
        "spec": {
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": UID},
            "replicas": replicas,
            "replicaRequirements": {"resourceRequest": {"cpu": "250m", "memory": "512Mi"}},
            "placement": placement,
        },
    }


@cache
def availability() -> dict[str, ClusterAvailability]:
    random = Random(7)
    return {
        each.name: ClusterAvailability(random.randint(1, 400), "scheduler-estimator") for each in clusters()
    }


def result(name: str, values: list[float], target: float | None) -> dict[str, Any]:
    return {"name": name, "unit": "ms", "values": values, "target": target}


def divide_replicas(strategy: ReplicaStrategy) -> dict[str, Any]:
    chosen = [ClusterCandidate(name, 0, 0, each.replicas, 0) for name, each in availability().items()]
    weights = {each.name: 1 + number % 7 for number, each in enumerate(chosen)}
    task = AssignmentTask(strategy, SchedulingMode.STEADY, REPLICAS, UID, weights=weights)
    values = timed(lambda: assign(chosen, task), repeat=200, warm=20)
    return result(f"divide 1,000 replicas over 100 clusters, {strategy}", values, 0.3)


def decide_one(name: str, given: Binding) -> dict[str, Any]:
    decision = schedule(given, clusters(), availability())
    assert decision.is_success, decision.message
    values = timed(lambda: schedule(given, clusters(), availability()), repeat=200, warm=20)
    return result(f"schedule one binding, 100 clusters, {name}", values, 1.0)


def reading() -> dict[str, Any]:
    raw = raw_binding(DYNAMIC)
    return result("read one binding", timed(lambda: read_binding(raw), repeat=200, warm=20), None)


def summaries(promises: int) -> dict[str, Any]:
    """What all clusters have room for, from their summaries with nodes by grade."""
    needs = requirements({"cpu": "250m", "memory": "512Mi"})
    assumed = [
        AssumedWorkload("default", (Component("web", 3 + number, needs),)) for number in range(promises)
    ]
    every = clusters()
    values = timed(
        lambda: [cluster_summary.replicas(each.summary, needs, assumed) for each in every], repeat=50
    )
    return result(f"estimate 100 clusters from summaries, {promises} promises each", values, None)


def benchmarks() -> list[Callable[[], dict[str, Any]]]:
    strategies = (
        ReplicaStrategy.DUPLICATED,
        ReplicaStrategy.STATIC,
        ReplicaStrategy.DYNAMIC,
        ReplicaStrategy.AGGREGATED,
    )
    made = [
        named(partial(divide_replicas, strategy), f"divide_{strategy.name.lower()}")
        for strategy in strategies
    ]
    cases = {
        "duplicated": binding(DUPLICATED),
        "static": binding(STATIC),
        "dynamic": binding(DYNAMIC),
        "aggregated": binding(AGGREGATED),
        "dynamic_by_cluster": binding(DYNAMIC, spread=[BY_CLUSTER]),
        "dynamic_by_region": binding(DYNAMIC, spread=[BY_REGION, BY_CLUSTER]),
    }
    made += (
        named(partial(decide_one, name.replace("_", " "), given), f"schedule_{name}")
        for name, given in cases.items()
    )
    made.append(reading)
    made += (named(partial(summaries, count), f"summaries_{count}") for count in (0, 1, 20))
    return made


def named(call: Callable[[], dict[str, Any]], name: str) -> Callable[[], dict[str, Any]]:
    def measure() -> dict[str, Any]:
        return call()

    measure.__name__ = name  # benchmarks are chosen by it
    return measure
