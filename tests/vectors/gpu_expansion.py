"""Vectors of the queue of scale-ups: who is queued, how many nodes at once, what is asked for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from karpool.cluster.cluster import Cluster
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.market import Market
from karpool.gpu.controller.allocator_state import AllocatorState
from karpool.gpu.controller.cluster_view import GpuClusterReader, step_view
from karpool.gpu.controller.controller import ASPECTS, REFINING
from karpool.gpu.controller.worker_pods import WorkerPods
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.records.written_records import WrittenRecords
from karpool.gpu.scale_up.candidates import CandidateFinder
from karpool.gpu.scale_up.input import GpuNodeView, ScaleUpInput
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.gpu.scale_up.unit_progress import advance
from karpool.model.devices import tensor_fusion
from karpool.model.devices.device import POOL_LABEL
from karpool.model.karpenter.objects import capacity_type_named
from karpool.model.kubernetes.node import REGION
from karpool.model.requirements import ValueSet
from karpool.provisioning.claims.claim_progress import ClaimProgress, ClaimStage
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, unit
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings, smart_pod
from tests.vectors.gpu import whole_device
from tests.vectors.registry import Case, kind

SCHEDULER, POOL = "ours", "gpus"
NODE_POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": POOL},
    "spec": {
        "template": {
            "metadata": {"labels": {POOL_LABEL: POOL}},
            "spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g5.xlarge"]}
                ],
            },
        }
    },
}


def rejected_pod(given: Mapping[str, Any]) -> dict[str, Any]:
    """As a cluster shows a pod that found no place."""
    asks = {tensor_fusion.VRAM_REQUEST: "4Gi", tensor_fusion.POOL: POOL} if given.get("worker") else {}
    uid = given.get("uid", "uid")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": uid, "namespace": "team", "uid": uid, "annotations": asks},
        "spec": {
            "schedulerName": SCHEDULER if given.get("worker") else "default-scheduler",
            "nodeName": given.get("node_name", ""),
            "nodeSelector": given.get("node_selector") or {},
            "affinity": given.get("affinity"),
            "containers": [{"name": "c", "image": "i"}],
        },
        "status": {
            "phase": "Pending",
            "nominatedNodeName": given.get("nominated_node_name") or given.get("nominated_node") or "",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        },
    }


@kind("admit_rejected_pod")
def answer_admission(case: Case) -> dict[str, Any]:
    given = case["input"]
    workers, market = WorkerPods(SCHEDULER), Market(region="us-east-1")
    cluster = Cluster(ASPECTS | REFINING, market=market, keeps=workers.is_worker)
    for _ in range(given.get("repeat", 1)):
        cluster.load([NODE_POOL, rejected_pod(given)], 0.0)
    reader = GpuClusterReader(workers, WrittenRecords(), namespace="karpool")
    seen, ladders = reader.read(cluster.snapshot(0.0)), CandidateFinder(market)
    ladders.use_pools(seen.snapshot.pools)
    view = step_view(seen, now=0.0, placeholders=(), claims={}, resting={}, busy={})
    triaged, _ = AllocatorState(ScaleUpSettings()).refresh(view, ladders, ladders.why_none)
    queued = [item.uid for demand in triaged.demand.values() for item in demand.items]
    return {"queued": bool(queued), "queue_length": len(queued)}


@kind("max_inflight")
def answer_cap(case: Case) -> int:
    return ScaleUpSettings(max_in_flight=case["input"]["value"]).in_flight_cap


@kind("cleanup_inflight")
def answer_cleanup(case: Case) -> dict[str, list[str]]:
    """A claim that is Ready has registered its devices: Karpenter waits for them. One that only has a node
    stays in flight here (docs/gpu.md says why)."""
    claim, in_flight = case["input"].get("claim"), case["input"]["inflight"]
    key = DemandKey(POOL, "*", 1, 4, 0)
    units = [
        ScaleUpUnit(index, 1, 0, 0, "c", ScaleUpState.LAUNCHING, 0.0, 0.0, claim=name)
        for index, name in enumerate(in_flight)
    ]
    nodes, claims = {}, {name: progress(name) for name in in_flight}
    if claim is None or claim.get("name") not in in_flight:
        claims = {name: progress(name) for name in in_flight if claim is not None}
    else:
        name, node = claim["name"], claim.get("node_name") or ("n" if claim.get("ready") else "")
        ending = LaunchReason.CLAIM_LOST if claim.get("deleting") else None
        claims[name] = replace(progress(name), node=node, ending=ending)
        if node:
            devices = (whole_device("gpu", node),) if claim.get("ready") else ()
            going = bool(claim.get("deleting"))
            nodes[node] = GpuNodeView(node, bool(claim.get("ready")), going=going, devices=devices)
    record = ScaleUpRecord(key, ScaleUpState.LAUNCHING, 0.0, 0.0, uid="r", epoch=1, units=tuple(units))
    world = ScaleUpInput(now=60.0, records={record.name: record}, nodes=nodes, claims=claims)
    looked = [advance(record, unit, None, world, ScaleUpSettings()) for unit in units]
    after = replace(record, units=tuple(unit for unit in looked if isinstance(unit, ScaleUpUnit)))
    return {"inflight": [unit.claim for unit in after.units_in_flight]}


def progress(name: str) -> ClaimProgress:
    return ClaimProgress(name, name, POOL, ClaimStage.LAUNCHING, 0.0)


@kind("capacity_type_label")
def answer_capacity_type(case: Case) -> str:
    return capacity_type_named(case["input"]["capacity_type"])


@kind("build_requirements", same=lambda expected, actual: bool(expected == actual))
def answer_requirements(case: Case) -> dict[str, Any]:
    """What a smart pod asks an autoscaler for. What its pool requires stays with the pool."""
    claim = case["input"]["claim"]
    candidate = NodeCandidate(
        instance_types=tuple(filter(None, (claim.get("instance_type"),))),
        zones=tuple(filter(None, (claim.get("zone"),))),
        capacity_types=tuple(filter(None, (capacity_type_named(claim.get("capacity_type") or ""),))),
        requirements={REGION: ValueSet(frozenset((claim["region"],)))} if claim.get("region") else {},
    )
    asked = unit({"nvidia.com/gpu": claim.get("gpu_device_offered", 0)})
    pod = smart_pod(NodeRequest("request", 0, (asked,), (candidate,)), candidate, 0, SmartPodSettings())
    affinity = pod["spec"]["affinity"].get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ())
    protection = "karpenter.sh/do-not-disrupt"
    return {
        "requirements": {
            entry["key"]: entry["values"] for term in terms for entry in term["matchExpressions"]
        },
        "resources": pod["spec"]["containers"][0]["resources"]["limits"],
        "annotations": {protection: pod["metadata"]["annotations"][protection]},
    }
