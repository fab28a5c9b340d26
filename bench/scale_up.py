"""A thousand failing GPU requests at once: how long until the last smart pod, and how many nodes too many.

The whole scaler against an API server in a process of its own, over HTTPS, sharing the
machine. The requests are there before it starts; measured is from the moment it has read
everything to the moment the last smart pod is created. The wait that lets demand gather
(debounce) is set to zero, and neither client nor cap on nodes limits it: they would be
what is measured. Sizes are chosen so that they do not divide a device; the optimum is the
linear bound, below which no packing can be.
"""

import asyncio
import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import uvloop

from bench import apiserver
from bench.provisioning import _client
from karpool.cluster.market.market import Market
from karpool.gpu.controller.controller import GpuScaler
from karpool.gpu.controller.options import SCHEDULER_NAME, GpuScalerOptions
from karpool.kube.api.client import Client
from karpool.manager.manager import GC_THRESHOLDS, Manager
from karpool.model.catalogue.files import load_shipped, shipped_zones
from karpool.model.kubernetes.api_resources import CRDS, NODEPOOLS, PODS, ListOptions
from karpool.provisioning.placeholders.smart_pod import SELECTOR
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds

REQUESTS = 1000
RUNS = 3
REGION = "us-east-1"
SHAPES_GIB = (14, 10, 7, 4)  # of the 22.4 GiB of an L4; none divides it
DEVICE_GIB = 22888 / 1024
_TINY = 1e-9


@dataclass(frozen=True)
class Run:
    seconds: float
    nodes: int


def _pod(number: int) -> dict[str, Any]:
    given = {
        "gpupool": "gpu",
        "vram-request": f"{SHAPES_GIB[number % len(SHAPES_GIB)]}Gi",
        "tflops-request": "5",
    }
    return {
        "metadata": {
            "name": f"worker-{number}",
            "namespace": "default",
            "annotations": {f"tensor-fusion.ai/{key}": value for key, value in given.items()},
        },
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "model:1",
                    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                }
            ],
        },
    }


def _pool() -> dict[str, Any]:
    requirements = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g6.xlarge"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
    ]
    node_class = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    spec = {"requirements": requirements, "nodeClassRef": node_class}
    return {"metadata": {"name": "gpu"}, "spec": {"template": {"spec": spec}}}


async def _setting(client: Client) -> None:
    for crd in bundled_crds(KARPENTER):
        await client.create(CRDS, crd)
    await client.create(NODEPOOLS, _pool())
    gate = asyncio.Semaphore(32)

    async def add(number: int) -> None:
        async with gate:
            await client.create(PODS, _pod(number))

    await asyncio.gather(*(add(number) for number in range(REQUESTS)))


async def _run() -> Run:
    async with apiserver.server() as address, _client(address) as client, _client(address) as other:
        await _setting(client)
        catalogue = load_shipped(REGION, zones=dict.fromkeys(shipped_zones(REGION)[:3]))
        options = GpuScalerOptions(
            debounce_seconds=0.0, max_in_flight=REQUESTS, accept_unenforced_shares=True
        )
        scaler = Manager.of(
            client, lambda environment: GpuScaler(environment, options, market=Market(catalogue))
        )
        running = asyncio.ensure_future(scaler.run())
        while scaler.not_ready() is not None:  # noqa: ASYNC110 - the scaler has no event for it
            await asyncio.sleep(0.001)
        start = last = time.perf_counter()
        seen = 0
        while time.perf_counter() - last < 3.0:  # nothing new for a while: that was the last one
            found = len((await other.list(PODS, ListOptions(label_selector=SELECTOR))).items)
            if found != seen:
                seen, last = found, time.perf_counter()
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return Run(last - start, seen)


@cache
def _runs() -> tuple[Run, ...]:
    gc.set_threshold(*GC_THRESHOLDS)  # as in the process: full collections would be a quarter of the time
    return tuple(uvloop.run(_run()) for _ in range(RUNS))


def last_smart_pod_of_a_thousand_requests() -> dict[str, Any]:
    values = [run.seconds for run in _runs()]
    return {
        "name": f"scale-up: {REQUESTS:,} requests to the last smart pod",
        "unit": "s",
        "values": values,
        "target": 2.0,
    }


def nodes_beyond_the_optimum() -> dict[str, Any]:
    values = [float(run.nodes - optimum()) for run in _runs()]
    return {
        "name": f"scale-up: nodes beyond the optimum of {optimum()}",
        "unit": "nodes",
        "values": values,
        "target": 1.0,
    }


@cache
def optimum() -> int:
    """No packing needs fewer nodes: the linear bound over all ways to fill a device.

    Its dual has one price per size such that no filling costs more than one device; the best
    prices lie where as many fillings as there are sizes cost exactly that.
    """
    counts = np.array([len(range(start, REQUESTS, len(SHAPES_GIB))) for start in range(len(SHAPES_GIB))])
    most = [int(DEVICE_GIB // gib) for gib in SHAPES_GIB]
    sizes = np.array(SHAPES_GIB)
    every = product(*(range(number + 1) for number in most))
    fillings = np.array([each for each in every if 0 < sizes @ each <= DEVICE_GIB], dtype=float)
    rows = np.vstack((fillings, np.eye(len(sizes))))
    right = np.array([1.0] * len(fillings) + [0.0] * len(sizes))
    best = 0.0
    for chosen in combinations(range(len(rows)), len(sizes)):
        corner = rows[list(chosen)]
        if abs(np.linalg.det(corner)) < _TINY:
            continue
        prices = np.linalg.solve(corner, right[list(chosen)])
        if (prices >= -_TINY).all() and (fillings @ prices <= 1 + _TINY).all():
            best = max(best, float(counts @ prices))
    return math.ceil(best - 1e-6)


def benchmarks() -> list[Callable[[], dict[str, Any]]]:
    return [last_smart_pod_of_a_thousand_requests, nodes_beyond_the_optimum]
