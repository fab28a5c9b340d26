"""A count with claims is what somebody reaches who places one pod after the other with the same allocator."""

from random import Random
from typing import Any

import numpy as np
import pytest

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.dra.wire import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.packing.claim_filling import ClaimFilling
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import PodGroup, first_fit
from karpool.packing.dra.outcome import DraStatus
from karpool.packing.dra.pod_claims import demand_of_shape, place_pod, with_pod
from karpool.packing.relocation.relocation import Relocation
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room
from tests.packing.random_dra import world
from tests.packing.test_devices_of_drivers import put

GPU, CLASS_GPU = "example.com/gpu", "deviceclass.resource.kubernetes.io/gpu"
CPU = 1000  # of every pod
PODS_MAX = 200


def built(seed: int) -> tuple[Room, list[PodShape]]:
    """Few CPUs, some nodes with a plugin, claims of templates, claims under their own names, and pods that
    ask for what a class offers in one or several containers."""
    random, raw_world, state = Random(seed), world(seed), ClusterRoom(dra=True)
    for node in raw_world["nodes"]:
        offers = {"cpu": random.randrange(6) * CPU, "pods": random.choice((3, 110))}
        if random.random() < 0.3:
            offers[GPU] = random.randrange(4)
        state.put_node(NodeRow(node["metadata"]["name"], node["metadata"]["labels"], (), offers))
    for raw in raw_world["slices"]:
        put(state, ResourceSlice, raw)
    for raw in raw_world["classes"]:
        offers_gpu = raw["metadata"]["name"] == "gpu" and random.random() < 0.7
        offer = {"extendedResourceName": GPU} if offers_gpu else {}
        put(state, DeviceClass, {**raw, "spec": {**raw.get("spec", {}), **offer}})
    for raw in raw_world["allocated"]:
        put(state, ResourceClaim, raw)
    entries = []
    named = random.random() < 0.25
    for raw in raw_world["claims"]:
        name = raw["metadata"]["name"]
        put(state, ResourceClaimTemplate, {"metadata": raw["metadata"], "spec": {"spec": raw["spec"]}})
        put(state, ResourceClaim, raw)
        entries.append({"name": name, "resourceClaimName" if named else "resourceClaimTemplateName": name})
    shapes = [shape(random, entries, random.choice((0, 0, 1))), shape(random, [], random.choice((1, 2, 3)))]
    return state.snapshot(), shapes


def shape(random: Random, entries: list[Any], containers: int) -> PodShape:
    def container(number: int) -> dict[str, Any]:
        asked = {random.choice((GPU, CLASS_GPU)): str(random.choice((1, 1, 2)))} if containers else {}
        return {"name": f"c{number}", "resources": {"requests": {"cpu": "1" if not number else "0"} | asked}}

    spec: dict[str, Any] = {"containers": [container(number) for number in range(max(containers, 1))]}
    if containers > 1 and random.random() < 0.5:
        spec["initContainers"] = [container(9)]
    if entries:
        spec["resourceClaims"] = entries
    return shape_of(decode({"metadata": {"name": "p", "namespace": "default"}, "spec": spec}, Pod))


def one_by_one(room: Room, asked: PodShape) -> tuple[int, bool]:
    """How many, and whether some node answers with an error."""
    state = room.dra
    assert state is not None
    left = {name: room.free(name).tolist() for name, _ in asked.requests}
    slots = room.slots.tolist()
    pods = 0
    while pods < PODS_MAX:
        demand = demand_of_shape(state, asked)
        for row in room.order.tolist():
            of_plugins = [
                (name, units)
                for name, units in asked.requests
                if name not in state.offered or room.allocatable(name)[row]
            ]
            if slots[row] < 1 or any(left[name][row] < units for name, units in of_plugins):
                continue
            placed = place_pod(state, demand, room.dra_node(row, demand.extended))
            if placed.outcome.status is DraStatus.ERROR:
                return pods, True
            if placed.fits:
                break
        else:
            return pods, False
        state = with_pod(state, demand, placed)
        slots[row] -= 1
        for name, units in of_plugins:
            left[name][row] -= units
        pods += 1
    return pods, False


SEEDS = range(9000, 9400)


@pytest.mark.long
def test_counts() -> None:
    served = extended = 0
    for seed in SEEDS:
        room, shapes = built(seed)
        for asked in shapes:
            pods, failed = one_by_one(room, asked)
            if failed:
                continue  # which nodes are met before the one that fails is not for a count to say
            assert count(room, asked).total == pods, seed
            assert first_fit(room, [PodGroup(asked, 1)], bound=PODS_MAX).sets == pods, seed
            served += pods > 0
            extended += pods > 0 and not asked.resource_claims
    assert served > 150 and extended > 50  # the worlds say something


@pytest.mark.parametrize("seed", range(9400, 9440))
def test_two_components_share_what_there_is(seed: int) -> None:
    room, shapes = built(seed)
    groups = [PodGroup(asked, 1) for asked in shapes]
    placed = first_fit(room, groups, bound=3)
    state = room.dra
    for placement in placed.placements:  # all of it at once, on the nodes that were named
        for _ in range(placement.count):
            assert state is not None
            demand = demand_of_shape(state, placement.shape)
            outcome = place_pod(state, demand, room.dra_node(placement.node, demand.extended))
            assert outcome.fits
            state = with_pod(state, demand, outcome)


def small_world(devices: int, *, shared: bool) -> tuple[Room, PodShape]:
    """Two nodes, the first with room for one more pod; devices of the first, or of both."""
    state = ClusterRoom(dra=True)
    for name, cpu in (("n0", 2 * CPU), ("n1", 9 * CPU)):
        state.put_node(NodeRow(name, {}, (), {"cpu": cpu, "pods": 110}))
    place = {"allNodes": True} if shared else {"nodeName": "n1"}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    named = [{"name": f"d{index}"} for index in range(devices)]
    spec = {"driver": "d.example.com", "pool": pool, "devices": named, **place}
    put(state, ResourceSlice, {"metadata": {"name": "s"}, "spec": spec})
    put(state, DeviceClass, {"metadata": {"name": "gpu"}, "spec": {}})
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    claim = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    metadata = {"name": "one", "namespace": "default"}
    put(state, ResourceClaimTemplate, {"metadata": metadata, "spec": {"spec": claim}})
    asked = shape(Random(0), [{"name": "c", "resourceClaimTemplateName": "one"}], 0)
    state.put_pod("default/moving", asked, "n0")
    return state.snapshot(), asked


def test_a_full_node_takes_no_device_that_another_could_use() -> None:
    room, asked = small_world(4, shared=True)
    assert count(room, asked).total == 4


def test_what_is_not_given_to_all_is_given_to_none() -> None:
    room, asked = small_world(2, shared=False)
    filling = ClaimFilling(room)
    assert not filling.take(1, asked, 3)
    assert filling.take(1, asked, 2)


def test_devices_come_back_with_the_pods() -> None:
    room, asked = small_world(1, shared=False)
    number = room.shapes.intern(asked)
    moving = Relocation(room, room.order, np.ones(room.n, dtype=np.bool_), [number])
    mark = moving.mark()
    assert moving.place(number, 2) == [(1, 1)]
    moving.undo(mark)
    assert moving.place(number, 1) == [(1, 1)]
