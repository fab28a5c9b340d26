"""Asking for a thousand nodes at once, and climbing the ladder of a large catalogue.

The API server runs in a process of its own over HTTPS and shares the machine. Every
request is one of its own, as when a thousand allocations fail together; what is
measured ends when the last smart pod has been created. The client has no rate limit:
one would measure itself.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import uvloop

from bench import apiserver
from bench.timing import timed
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.config.kubeconfig import ClusterConfig, DataOrFile, KubeUser
from karpool.kube.transport.http import HttpTransport
from karpool.model.catalogue.files import load_shipped, shipped_regions, shipped_zones
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.offerings import Offerings
from karpool.provisioning.candidates.ladder import CandidateQuery, ladder
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, unit
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings, smart_pod
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend

REQUESTS = 1000
RUNS = 5
POOLS = 20
SETTINGS = SmartPodSettings()
CANDIDATE = NodeCandidate(pools=("gpu",), instance_types=("g5.xlarge", "g6.xlarge"))
UNIT = unit({"cpu": 4000, "memory": 2**34, "nvidia.com/gpu": 1})


def _asks(run: int) -> list[NodeRequest]:
    return [
        NodeRequest(f"scaleup-{run}-{number}", 1, (UNIT,), (CANDIDATE,), model="NVIDIA A10G", pool="shared")
        for number in range(REQUESTS)
    ]


def _client(address: apiserver.Server) -> Client:
    user = KubeUser(token=address.token)
    config = ClusterConfig("bench", address.url, ca=DataOrFile(address.ca_pem.encode()), user=user)
    return Client(HttpTransport(config), qps=None)


async def _create_runs() -> list[float]:
    """Seconds of each run until the last smart pod is there."""
    seconds = []
    async with apiserver.server() as address, _client(address) as client:
        assert await ensure_prerequisites(client, SETTINGS) == []
        backend = SmartPodBackend(client, SETTINGS, ClaimMonitor(RealClock()))
        for run in range(RUNS + 1):
            asks = _asks(run)
            start = time.perf_counter()
            results = await asyncio.gather(*(backend.request(ask, CANDIDATE) for ask in asks))
            seconds.append(time.perf_counter() - start)
            assert all(result.created == (0,) for result in results)
    return seconds[1:]  # the first run compiles schemas and opens connections


def smart_pods_of_a_thousand_requests() -> dict[str, Any]:
    return {
        "name": f"last of {REQUESTS:,} smart pods created",
        "unit": "s",
        "values": uvloop.run(_create_runs()),
        "target": 2.0,
    }


def manifests_of_a_thousand_requests() -> dict[str, Any]:
    asks = _asks(0)
    values = timed(lambda: [smart_pod(ask, CANDIDATE, 0, SETTINGS) for ask in asks], repeat=10)
    return {"name": f"{REQUESTS:,} manifests of smart pods", "unit": "ms", "values": values, "target": None}


def ladder_of_a_region() -> dict[str, Any]:
    """One ladder over all types of a region and twenty pools, compiled offerings included once."""
    region = shipped_regions()[0]
    catalogue = load_shipped(region, zones=dict.fromkeys(shipped_zones(region)[:3]))
    offerings = Offerings(catalogue)
    category = "karpenter.k8s.aws/instance-category"
    pools = [
        CompiledPool(f"pool-{number:02}", requirements={category: ValueSet(frozenset(("g", "p")))})
        for number in range(POOLS)
    ]
    wish = CandidateQuery({"cpu": 4000, "memory": 2**34, "nvidia.com/gpu": 1})
    values = timed(lambda: ladder(wish, pools, offerings), repeat=10)
    return {
        "name": f"ladder, {POOLS} pools, all types of a region",
        "unit": "ms",
        "values": values,
        "target": None,
    }


def benchmarks() -> list[Callable[[], dict[str, Any]]]:
    return [smart_pods_of_a_thousand_requests, manifests_of_a_thousand_requests, ladder_of_a_region]
