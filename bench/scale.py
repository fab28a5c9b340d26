"""A hundred clusters of a thousand nodes in one process, on manual time.

Each cluster has 1,000 nodes, 2,000 running pods and all embedded components; each fleet
also has a Karmada, Karpool's estimator for every member and its scheduler. Measured are: the
time to build the fleet, the time and the rate of simulating an hour in which every five
minutes a binding of 100 replicas is placed and a pod comes and one goes in every cluster, and
the peak memory, for 10, 25, 50 and 100 clusters. Every size runs in a process of its own,
whose peak memory is then its own. Times are CPU times: there is one thread, so on a machine
with nothing else to do they are wall times, and on a busy one they are still comparable.
`KARPOOL_SCALE_CLUSTERS=5,10` and `KARPOOL_SCALE_NODES=100` run something smaller. `python -m bench.scale`
prints the growth curve as a table, with what each cluster costs: it should stay the same from size to size.
"""

import asyncio
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog

from bench.fleet import _pod
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, PODS, PROPAGATIONPOLICIES, RESOURCEBINDINGS
from karpool.scheduler.controller.options import SCHEDULER_NAME
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.controllers import add_controllers
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import ClusterSpec, FleetFile, KarmadaSpec, StaticNodes
from karpool_fleet.clusters.object_loader import restore_objects

SIZES = tuple(int(each) for each in os.environ.get("KARPOOL_SCALE_CLUSTERS", "10,25,50,100").split(","))
NODES = int(os.environ.get("KARPOOL_SCALE_NODES", "1000"))
PODS_PER_NODE = 2
ROUNDS = 12  # of five minutes
CONTROLLERS: dict[str, dict[str, Any]] = {"estimator": {}, "scheduler": {}}


def _fleet_file(clusters: int) -> FleetFile:
    # Nodes are put into the stores at once, not written one by one: that is not what is measured.
    specs = [ClusterSpec(name=f"c{number:03d}", autoscaler="none") for number in range(clusters)]
    return FleetFile(clusters=specs, karmada=KarmadaSpec())


def _fill(fleet: EmbeddedFleet) -> None:
    for cluster in fleet.clusters.values():
        nodes = cluster._static(StaticNodes(type="m7i.2xlarge", count=NODES))
        names = [node["metadata"]["name"] for node in nodes]
        pods = (_pod(f"p{number}", names[number % NODES]) for number in range(NODES * PODS_PER_NODE))
        restore_objects(cluster.embedded.server, [*nodes, *pods])


async def _place(client: Any, number: int) -> None:
    name = f"app-{number}"
    container = _pod("")["spec"]["containers"][0]
    labels = {"app": name}
    spec: dict[str, Any] = {
        "schedulerName": SCHEDULER_NAME,
        "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name}],
        "placement": {
            "replicaScheduling": {
                "replicaSchedulingType": "Divided",
                "replicaDivisionPreference": "Weighted",
                "weightPreference": {"dynamicWeight": "AvailableReplicas"},
            }
        },
    }
    meta = {"name": name, "namespace": "default"}
    await client.create(PROPAGATIONPOLICIES, {"metadata": meta, "spec": spec})
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    body = {"replicas": 100, "selector": {"matchLabels": labels}, "template": template}
    await client.create(DEPLOYMENTS, {"metadata": meta, "spec": body})


async def _churn(fleet: EmbeddedFleet, number: int) -> None:
    """In every cluster one pod goes and one comes."""
    for cluster in fleet.clusters.values():
        client = cluster.embedded.client("people")
        await client.delete(PODS, f"p{number}", namespace="default")
        fresh = {key: value for key, value in _pod(f"q{number}").items() if key != "status"}
        await client.create(PODS, fresh)


def _furnish(fleet: EmbeddedFleet) -> None:
    add_controllers(fleet, CONTROLLERS)


def build_and_run(clusters: int) -> tuple[float, float, float]:
    """CPU seconds to build, and for the simulated hour; peak MiB."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    start = time.process_time()

    async def story() -> tuple[float, float]:
        async with EmbeddedFleet(_fleet_file(clusters), LoopClock(), furnish=_furnish) as fleet:
            _fill(fleet)
            await asyncio.sleep(60)
            built = time.process_time()
            assert fleet.karmada is not None
            people = fleet.karmada.client("people")
            for number in range(ROUNDS):
                await _place(people, number)
                await _churn(fleet, number)
                await asyncio.sleep(300)
            bindings = (await people.list(RESOURCEBINDINGS)).items
            placed = [binding for binding in bindings if binding["spec"].get("clusters")]
            assert len(placed) == ROUNDS, f"{len(placed)} of {ROUNDS} bindings are placed"
            return built - start, time.process_time() - built

    seconds = run_manual(story())
    return *seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measured(clusters: int) -> tuple[float, float, float]:
    script = f"from bench.scale import build_and_run as b; print(*b({clusters}))"
    words = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    return float(words[0]), float(words[1]), float(words[2])


def benchmarks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for clusters in SIZES:
        build, hour, peak = _measured(clusters)
        about = f"{clusters} clusters × {NODES:,} nodes"
        found += [
            {"name": f"{about}: built", "unit": "s", "values": [build], "target": None},
            {"name": f"{about}: an hour with 12 bindings", "unit": "s", "values": [hour], "target": None},
            {
                "name": f"{about}: times real time",
                "unit": "x",
                "values": [3600 / hour],
                "target": None,
                "better": "higher",
            },
            {"name": f"{about}: peak memory", "unit": "MiB", "values": [peak], "target": None},
        ]
    return found


def table(
    sizes: Iterable[int], measure: Callable[[int], tuple[float, float, float]] = _measured
) -> Iterator[str]:
    yield "| Clusters | Nodes | Built | One hour | Times real time | Peak memory | Each cluster |"
    yield "|---|---|---|---|---|---|---|"
    for clusters in sizes:
        build, hour, peak = measure(clusters)
        each = f"{build / clusters:.2f} s, {hour / clusters:.2f} s, {peak / clusters:.1f} MiB"
        yield (
            f"| {clusters} | {clusters * NODES:,} | {build:.0f} s | {hour:.0f} s | {3600 / hour:.0f} "
            f"| {peak:,.0f} MiB | {each} |"
        )


if __name__ == "__main__":
    for line in table(SIZES):
        print(line, flush=True)
