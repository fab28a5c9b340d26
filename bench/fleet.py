"""Embedded clusters on manual time: how much a simulated cluster costs.

Wall and CPU time of this process. A cluster has all its components: scheduler,
kubelets, workload controllers, node lifecycle, volumes and Karpenter.
"""

import asyncio
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import structlog

from karpool.model.kubernetes.api_resources import DEPLOYMENTS, PODS
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.fleet_file import ClusterSpec, StaticNodes
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.clusters.object_loader import restore_objects

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))

RUNS = 3
DAY = 86_400


def _pod(name: str, node: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "bench"}},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": "bench:1",
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                }
            ],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            **({"nodeName": node} if node else {}),
        },
        "status": {
            "phase": "Running" if node else "Pending",
            "conditions": [{"type": "Ready", "status": "True"}] if node else [],
        },
    }


POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "general"},
    "spec": {
        "template": {
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [
                    {
                        "key": "karpenter.k8s.aws/instance-category",
                        "operator": "In",
                        "values": ["c", "m", "r"],
                    }
                ],
            }
        }
    },
}


def _deployment(replicas: int) -> dict[str, Any]:
    labels = {"app": "bench"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "bench", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": _pod("")["spec"]["containers"]},
            },
        },
    }


def _timed(story: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    run_manual(story())  # type: ignore[arg-type]
    return time.perf_counter() - start


def thousand_pods() -> dict[str, Any]:
    """From an empty cluster to 1,000 ready pods of a Deployment, nodes bought by Karpenter."""

    async def story() -> None:
        cluster = LiveCluster(ClusterSpec(name="bench", objects=[POOL, _deployment(1000)]), clock=LoopClock())
        async with cluster.running():
            await cluster.load(Path())
            client = cluster.embedded.client("bench")
            while True:
                await asyncio.sleep(1)
                found = await client.get(DEPLOYMENTS, "bench", namespace="default")
                if found.get("status", {}).get("readyReplicas") == 1000:
                    return

    values = [_timed(story) for _ in range(RUNS)]
    return {"name": "1,000 pods on an empty cluster, wall", "unit": "s", "values": values, "target": 2.0}


def build_large_cluster() -> tuple[float, float]:
    """Seconds and peak MiB: 5,000 nodes and 50,000 pods put in, components started, a quiet minute."""

    async def story() -> None:
        spec = ClusterSpec(name="bench", nodes=[StaticNodes(type="m7i.2xlarge", count=5000)])
        cluster = LiveCluster(spec, clock=LoopClock())
        names = [node["metadata"]["name"] for node in cluster.nodes]
        pods = (_pod(f"p{number}", names[number % len(names)]) for number in range(50_000))
        restore_objects(cluster.embedded.server, [*cluster.nodes, *pods])
        async with cluster.running():
            await asyncio.sleep(60)
            assert len((await cluster.embedded.client("bench").list(PODS)).items) == 50_000

    seconds = _timed(story)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def large_cluster() -> list[dict[str, Any]]:
    """In processes of their own, whose peak memory is then that of the cluster."""
    script = "from bench.fleet import build_large_cluster as b; print(*b())"
    runs = [
        [float(word) for word in subprocess.check_output([sys.executable, "-c", script], text=True).split()]
        for _ in range(RUNS)
    ]
    seconds, peaks = zip(*runs, strict=True)
    return [
        {
            "name": "5,000 nodes, 50,000 pods built and idle",
            "unit": "s",
            "values": list(seconds),
            "target": 20.0,
        },
        {"name": "the same, peak memory", "unit": "MiB", "values": list(peaks), "target": 1024.0},
    ]


def day_of_churn() -> list[dict[str, Any]]:
    """500 nodes for a day; 5,000 pods arrive at random times and leave at random times."""

    async def story() -> None:
        spec = ClusterSpec(name="bench", nodes=[StaticNodes(type="m7i.2xlarge", count=500)])
        cluster = LiveCluster(spec, clock=LoopClock())
        restore_objects(cluster.embedded.server, cluster.nodes)
        draw = Random(1)
        async with cluster.running():
            client = cluster.embedded.client("bench")

            async def live(number: int) -> None:
                arrival, departure = sorted((draw.uniform(0, DAY), draw.uniform(0, DAY)))
                await asyncio.sleep(arrival)
                await client.create(PODS, {k: v for k, v in _pod(f"p{number}").items() if k != "status"})
                await asyncio.sleep(departure - arrival)
                await client.delete(PODS, f"p{number}", namespace="default")

            async with asyncio.TaskGroup() as group:
                for number in range(5000):
                    group.create_task(live(number))
            await asyncio.sleep(60)
            assert not (await client.list(PODS)).items

    seconds = _timed(story)
    return [
        {"name": "a day of churn on 500 nodes", "unit": "s", "values": [seconds], "target": 60.0},
        {
            "name": "the same, times real time",
            "unit": "x",
            "values": [DAY / seconds],
            "target": 1000.0,
            "better": "higher",
        },
    ]


def benchmarks() -> list[dict[str, Any]]:
    return [thousand_pods(), *large_cluster(), *day_of_churn()]
