"""Vectors of Dynamic Resource Allocation: one pod on a node, on every node, and how many."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from karpool.model.dra.objects import allocation_object, claim_of, class_of, slice_of, spec_of
from karpool.model.dra.wire import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.kubernetes.pod import Pod
from karpool.model.quantity import nano_value
from karpool.packing.dra.counting import count_on, count_over
from karpool.packing.dra.features import DraFeatures
from karpool.packing.dra.pod_claims import (
    DraNode,
    DraState,
    PodDemand,
    PodOutcome,
    demand_of,
    place_pod,
    state_of,
)
from karpool.packing.dra.stock import stock_of
from tests.vectors.registry import Case, kind

GATES = {
    "DRAAdminAccess": "admin_access",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRADeviceBindingConditions": "binding_conditions",
    "DRADeviceTaints": "taints",
    "DRAExtendedResource": "extended_resource",
    "DRAListTypeAttributes": "list_attributes",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRAPrioritizedList": "prioritized_list",
}
Json = Mapping[str, Any]


def world(given: Json) -> tuple[DraState, Pod, list[DraNode]]:
    features = DraFeatures(**{GATES[name]: on for name, on in (given.get("features") or {}).items()})
    defaulted = bool(given.get("undefaulted"))
    claims = [
        claim_of(decode(raw, ResourceClaim), defaulted=defaulted)
        for raw in [*(given.get("claims") or []), *(given.get("allocatedClaims") or [])]
    ]
    templates = [decode(raw, ResourceClaimTemplate) for raw in given.get("claimTemplates") or []]
    stock = stock_of(
        [slice_of(decode(raw, ResourceSlice)) for raw in given.get("resourceSlices") or []],
        [class_of(decode(raw, DeviceClass)) for raw in given.get("deviceClasses") or []],
        features,
    )
    state = state_of(
        stock,
        claims,
        {template.metadata.key: spec_of(template.spec.spec, defaulted=defaulted) for template in templates},
    )
    nodes = [decode(raw, Node) for raw in given["nodes"]]
    return (
        state,
        decode(given["pod"], Pod),
        [DraNode(node.name, node.labels, allocatable(node)) for node in nodes],
    )


@kind("dra_allocate", same=lambda expected, actual: same_allocation(expected, actual))  # noqa: PLW0108 - below
def allocate(case: Case) -> Json:
    given = case["input"]
    state, pod, nodes = world(given)
    node = next((node for node in nodes if node.name == given.get("node", nodes[0].name)), nodes[0])
    demand = demand_of(state, pod)
    placed = place_pod(state, demand, node)
    if not placed.fits:
        return {"fits": False, "status": str(placed.outcome.status), "message": placed.outcome.reason}
    devices = Counter(
        f"{claim}/{device.request}"
        for claim, allocation in placed.allocated.items()
        for device in allocation.devices
    )
    return {
        "fits": True,
        "allocations": {
            name: allocation_object(allocation, lambda: "*") for name, allocation in placed.allocated.items()
        },
        "devices_per_request": dict(devices),
        "alreadyAllocated": [claim.name for claim in demand.claims if claim.allocation is not None],
        **extended(placed),
    }


def extended(placed: PodOutcome) -> Json:
    requests = [request.alternatives[0] for request in placed.requests.requests]
    if not requests:
        return {}
    return {
        "extendedResourceRequests": [
            {
                "name": request.name,
                "exactly": {
                    "deviceClassName": request.device_class,
                    "allocationMode": request.mode,
                    "count": request.count,
                },
            }
            for request in requests
        ],
        "requestMappings": [
            {"containerName": use.container, "resourceName": use.resource, "requestName": use.request}
            for use in placed.mappings
        ],
    }


def same_allocation(expected: Json, actual: Json) -> bool:
    if expected["fits"] != actual["fits"]:
        return False
    if not expected["fits"]:
        return bool(expected["status"] == actual["status"])
    for key in ("devices_per_request", "extendedResourceRequests", "requestMappings", "alreadyAllocated"):
        if key in expected and expected[key] != actual.get(key):
            return False
    wanted, found = expected.get("allocations") or {}, actual["allocations"]
    if wanted.keys() != found.keys():
        return False
    return all(same_claim(wanted[name], found[name]) for name in wanted)


def same_claim(wanted: Json, found: Json) -> bool:
    """Also where the choice is free: ours follows the same order."""
    one, other = (claim["devices"] for claim in (wanted, found))
    rows = [[valued(row) for row in devices.get("results") or []] for devices in (one, other)]
    return (
        rows[0] == rows[1]
        and (one.get("config") or []) == (other.get("config") or [])
        and wanted.get("nodeSelector") == found.get("nodeSelector")
    )


def valued(row: Json) -> Json:
    """With amounts instead of how they are written."""
    amounts = row.get("consumedCapacity") or {}
    return {
        **row,
        "consumedCapacity": {
            name: amount if isinstance(amount, int) else nano_value(amount)
            for name, amount in amounts.items()
        },
    }


@kind("dra_feasible", same=lambda expected, actual: bool(expected["nodes"] == actual["nodes"]))
def feasible(case: Case) -> Json:
    state, pod, nodes = world(case["input"])
    demand = demand_of(state, pod)
    return {"nodes": {node.name: str(place_pod(state, demand, node).outcome.status) for node in nodes}}


@kind("dra_count", same=lambda expected, actual: same_count(expected, actual))  # noqa: PLW0108 - below
def count(case: Case) -> Json:
    given = case["input"]
    state, pod, nodes = world(given)
    limit = given.get("limit", 64)

    def demand(now: DraState) -> PodDemand:
        return demand_of(now, pod)

    counts = {node.name: count_on(state, demand, node, limit) for node in nodes}
    return {
        "counts": {name: found.pods for name, found in counts.items()},
        "stopped_by": {name: str(found.stopped_by) for name, found in counts.items()},
        **({"total": count_over(state, demand, nodes, limit * len(nodes)).pods} if len(nodes) > 1 else {}),
    }


def same_count(expected: Json, actual: Json) -> bool:
    return all(expected.get(key) == actual.get(key) for key in ("counts", "stopped_by", "total"))
