"""Karpenter's packing and ours, of the same pods, onto the same machines.

Karpenter runs whole, with its kwok provider and the machines that it ships with. Pods are
created first, and then marked as unschedulable, which is kube-scheduler's part, as fast as
the API server takes it; the batch window is long enough for all of them to be one batch.
What it asked for are the NodeClaims, and what each became once it was launched.

Ours is the planning kernel, in three orders of which the cheapest is kept (`CHEAPEST`); it has no
batches and writes nothing: the pods and the pool as
read back from the API server, and the machines from the file that the provider reads. So what
is compared is nodes, price and planning time; Karpenter's planning time is what it logs
for the pass, and the time to the last claim stands beside it.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from e2e.bench_real_loading import Result, for_all, say, send, talking
from e2e.bench_real_mixes import MIXES, random_mix
from e2e.control_plane import ApiServer, api_server, etcd
from e2e.kubectl import Kubectl, condition, wait_for
from e2e.member import NODE_CLASS, karpenter
from e2e.peers import Built
from e2e.processes import Program
from karpool.model import resources
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.durations import seconds
from karpool.model.karpenter.objects import CAPACITY_TYPE, CompiledPool, NodeClaim, NodePool, pool_of
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODEPOOLS, PODS
from karpool.model.kubernetes.node import ARCH, INSTANCE_TYPE, OS, ZONE
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.pack import PackOptions, pack_new_nodes
from karpool.packing.new_nodes.pack_order import CHEAPEST
from karpool.packing.new_nodes.pack_result import PackResult, PendingPod
from karpool.packing.tables.room import snapshot_of

CPUS_MAX = 32
_UNSCHEDULABLE = {
    "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
}
# What the provider keeps back on every machine.
_RESERVED = {"cpu": 100, "memory": 10 << 20}
_CPU_LABEL = "karpenter.kwok.sh/instance-cpu"


# What both may buy


def machines(built: Built) -> list[dict[str, Any]]:
    """Those that the provider ships with."""
    file = built.source / "kwok" / "cloudprovider" / "instance_types.json"
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


def catalogue_of(entries: Sequence[dict[str, Any]]) -> Catalogue:
    return Catalogue("kwok", "kwok", [_instance_type(entry) for entry in entries])


def _instance_type(entry: dict[str, Any]) -> InstanceType:
    capacity = {"pods": 110, **resources.parse(entry["resources"])}
    labels = {
        INSTANCE_TYPE: entry["name"],
        ARCH: entry["architecture"],
        OS: entry["operatingSystems"][0],
        _CPU_LABEL: entry["resources"]["cpu"],
    }
    allocatable = {name: units - _RESERVED.get(name, 0) for name, units in capacity.items()}
    requirements = {key: ValueSet(frozenset((value,))) for key, value in labels.items()}
    offers = [_offering(each) for each in entry["offerings"]]
    return InstanceType(entry["name"], requirements, capacity, allocatable).sold_as(offers)


def _offering(raw: dict[str, Any]) -> Offering:
    labels = {each["key"]: each["values"][0] for each in raw["Requirements"]}
    return Offering(labels[ZONE], labels[CAPACITY_TYPE], raw["Price"])


def node_pool() -> dict[str, Any]:
    requirements = [
        {"key": CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
        {"key": OS, "operator": "In", "values": ["linux"]},
        {"key": _CPU_LABEL, "operator": "Lt", "values": [str(CPUS_MAX + 1)]},
    ]
    reference = {"group": "karpenter.kwok.sh", "kind": NODE_CLASS["kind"], "name": "default"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {
            "template": {"spec": {"nodeClassRef": reference, "requirements": requirements}},
            "disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]},
        },
    }


# Measuring


def packing(
    peers: dict[str, Built], place: Path, share: float, seeds: Sequence[int] = ()
) -> dict[str, dict[str, Result]]:
    """By the title of a mix, then by make. `seeds`: random mixes, after the named ones."""
    found = {}
    sold = machines(peers["karpenter"])
    with etcd(peers["etcd"], place) as url:
        for number, mix in enumerate((*MIXES, *map(random_mix, seeds))):
            say(f"packing: {mix.title}")
            flags = ("--disable-admission-plugins=ServiceAccount",)
            with api_server(peers["kubernetes"], place, url, f"packing{number}", flags=flags) as server:
                found[mix.title] = _mix(peers, server, sold, mix.manifests(share))
            say(f"packing: {mix.title}: {found[mix.title]}")
    return found


def _mix(
    peers: dict[str, Built],
    server: ApiServer,
    sold: Sequence[dict[str, Any]],
    manifests: Sequence[dict[str, Any]],
) -> dict[str, Result]:
    kubectl = Kubectl(peers["kubernetes"].program("kubectl"), server.kubeconfig())
    program = karpenter(peers["karpenter"], server, kubectl, sold, {"BATCH_MAX_DURATION": "60s"})
    try:
        kubectl.apply(node_pool())
        wait_for("pool ready", lambda: _is_ready(kubectl.get("nodepool", "default")))
        asyncio.run(send(server, PODS, manifests))
        catalogue = catalogue_of(sold)
        theirs = _karpenters(server, program, catalogue)
        pods, pools = asyncio.run(_read(server))
        return {"karpenter": theirs, "karpool": _ours(pods, pools, catalogue)}
    finally:
        program.kill()


def _is_ready(pool: dict[str, Any]) -> bool:
    return condition(pool, "Ready").get("status") == "True"


def _karpenters(server: ApiServer, program: Program, catalogue: Catalogue) -> Result:
    count, first, last = asyncio.run(_mark_all(server))
    wait_for("all pods planned for", lambda: _planned(program) >= count, 150, otherwise=program.tail)
    claims = wait_for("claims launched", lambda: asyncio.run(_launched(server)), 60, otherwise=program.tail)
    passes = list(_said(program, "found provisionable pod(s)"))
    created = max(parse_rfc3339(line["time"]) for line in _said(program, "created nodeclaim"))
    return {
        "pods": count,
        "nodes": len(claims),
        "dollars_per_hour": sum(_price(claim, catalogue) for claim in claims),
        "planning_seconds": sum(seconds(line["duration"]) for line in passes),
        "passes": len(passes),
        "first_pod_to_last_claim_seconds": created - first,
        "last_pod_to_last_claim_seconds": created - last,
    }


async def _mark_all(server: ApiServer) -> tuple[int, float, float]:
    """As kube-scheduler would; returns how many there were, when it began and when it ended."""
    async with talking(server) as client:
        names = [pod.metadata.name for pod in (await client.list(PODS, into=Pod)).items]

        async def mark(name: str) -> None:
            await client.patch(
                PODS, name, _UNSCHEDULABLE, namespace="default", how="strategic", subresource="status"
            )

        first = time.time()
        await for_all(mark, names)
        return len(names), first, time.time()


async def _launched(server: ApiServer) -> list[NodeClaim]:
    """All claims, once each of them is a machine; none before."""
    async with talking(server) as client:
        claims = (await client.list(NODECLAIMS, into=NodeClaim)).items
    return list(claims) if all(INSTANCE_TYPE in claim.labels for claim in claims) else []


def _said(program: Program, message: str) -> Iterator[dict[str, Any]]:
    """What Karpenter logged under this text."""
    for line in program.text().splitlines():
        if message in line and line.endswith("}"):
            found: dict[str, Any] = json.loads(line)
            if found["message"] == message:
                yield found


def _planned(program: Program) -> int:
    return sum(int(line["pods"]) for line in _said(program, "computed new nodeclaim(s) to fit pod(s)"))


def _price(claim: NodeClaim, catalogue: Catalogue) -> float:
    labels = claim.labels
    price = catalogue.price(labels[INSTANCE_TYPE], labels[ZONE], labels[CAPACITY_TYPE])
    assert price is not None
    return price


async def _read(server: ApiServer) -> tuple[list[Pod], list[CompiledPool]]:
    async with talking(server) as client:
        pods = (await client.list(PODS, into=Pod)).items
        return list(pods), [pool_of(pool) for pool in (await client.list(NODEPOOLS, into=NodePool)).items]


def _ours(pods: Sequence[Pod], pools: Sequence[CompiledPool], catalogue: Catalogue) -> Result:
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        packed = _pack(pods, pools, catalogue)
        times.append(time.perf_counter() - begun)
    _check(packed, pods, catalogue)
    return {
        "pods": len(pods),
        "nodes": len(packed.nodes),
        "dollars_per_hour": sum(node.chosen.price_per_hour or 0.0 for node in packed.nodes),
        "planning_seconds": statistics.median(times),
    }


def _pack(pods: Sequence[Pod], pools: Sequence[CompiledPool], catalogue: Catalogue) -> PackResult:
    """From objects as a watch brings them; nothing is kept from one time to the next."""
    pending = [
        PendingPod(
            each.metadata.name, shape_of(each), each.metadata.creation_timestamp or "", each.metadata.uid
        )
        for each in pods
    ]
    return pack_new_nodes(snapshot_of(()), pending, pools, catalogue, options=PackOptions(orders=CHEAPEST))


def _check(packed: PackResult, pods: Sequence[Pod], catalogue: Catalogue) -> None:
    """That every pod has its place, and that what shares a node fits the machine that is paid for."""
    assert not packed.left, packed.left[:3]
    wants = {each.metadata.name: effective_requests(each) for each in pods}
    assert sorted(name for node in packed.nodes for name in node.pods) == sorted(wants)
    for node in packed.nodes:
        room = catalogue.types[node.chosen.instance_type].allocatable
        assert len(node.pods) <= room["pods"]
        for resource in ("cpu", "memory"):
            assert sum(wants[name].get(resource, 0) for name in node.pods) <= room[resource], node
