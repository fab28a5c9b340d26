"""Devices of drivers (DRA): how many pods with a claim fit into 5,000 nodes with 8 devices each."""

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from bench.timing import timed
from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.dra.wire import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod_shape import ClaimReference, PodShape
from karpool.packing.counting.count import count
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room

NODES, DEVICES = 5000, 8
DRIVER = "gpu.example.com"
OWN = f'device.attributes["{DRIVER}"]'


def claim(**fields: Any) -> dict[str, Any]:
    selector = {"cel": {"expression": f'{OWN}.model == "H100"'}}
    exactly = {"deviceClassName": "gpu", "selectors": [selector], "allocationMode": "ExactCount", "count": 1}
    return {"devices": {"requests": [{"name": "r", "exactly": exactly | fields}]}}


@cache
def room() -> Room:
    """Three tenths of the devices are held; each has an identity of its own, as real ones have."""
    random, state = Random(1), ClusterRoom(dra=True)
    results = []
    for number in range(NODES):
        name = f"n{number:05}"
        state.put_node(NodeRow(name, {}, (), {"cpu": 64_000, "memory": 2**39, "pods": 110}))
        model = random.choice(("H100", "A100"))
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {
                    "uuid": {"string": f"GPU-{number}-{index}"},
                    "model": {"string": model},
                    "numa": {"int": index // 4},
                },
                "capacity": {"memory": {"value": "80Gi"}},
            }
            for index in range(DEVICES)
        ]
        results += [
            {"request": "r", "driver": DRIVER, "pool": name, "device": device["name"]}
            for device in devices
            if random.random() < 0.3
        ]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
        put(state, ResourceSlice, {"metadata": {"name": name}, "spec": spec})
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    put(state, DeviceClass, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
    held = {"allocation": {"devices": {"results": results}}}
    put(state, ResourceClaim, {"metadata": {"name": "held", "namespace": "d"}, "status": held})
    pair = claim(count=2)
    pair["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/numa"}]
    for name, template in (("one", claim()), ("pair", pair)):
        metadata = {"name": name, "namespace": "d"}
        put(state, ResourceClaimTemplate, {"metadata": metadata, "spec": {"spec": template}})
    return state.snapshot()


def put(state: ClusterRoom, kind: type[Any], raw: dict[str, Any]) -> None:
    obj = decode(raw, kind)
    state.put_dra(kind.__name__, ObjectKey(obj.metadata.namespace, obj.name), obj)


def counted(template: str) -> Callable[[], object]:
    shape = PodShape(
        (("cpu", 1000),), namespace="d", resource_claims=(ClaimReference("c", template=template),)
    )

    def ask() -> object:
        room().claim_rooms.clear()  # what was answered before is not the question
        return count(room(), shape)

    return ask


def count_one_device() -> dict[str, Any]:
    name = f"count, a claim of one device, {NODES:,} nodes x {DEVICES} devices"
    return {"name": name, "unit": "ms", "values": timed(counted("one")), "target": 5}


def count_two_devices_of_one_numa_node() -> dict[str, Any]:
    name = f"count, a claim of two of one NUMA node, {NODES:,} nodes x {DEVICES} devices"
    return {"name": name, "unit": "ms", "values": timed(counted("pair"), repeat=5, warm=1), "target": None}


def benchmarks() -> list[Callable[[], dict[str, Any]]]:
    return [count_one_device, count_two_devices_of_one_numa_node]
