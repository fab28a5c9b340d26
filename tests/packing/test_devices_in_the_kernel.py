"""Shares of devices are room like any other: counted, placed, taken back and explained by the kernel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.request import UNREADABLE_DEMAND, DeviceDemand
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import count, fits
from karpool.packing.counting.first_fit import PodGroup, first_fit
from karpool.packing.fit_reasons import explain_nodes, show_count
from karpool.packing.relocation.relocation import Relocation
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement, Room
from tests.packing.naive_devices import NaiveDevice, pods_served

GIB = 2**30
A10 = DeviceAmount(125_000, 24 * GIB)
MOST = 6  # pod slots of a node


def gpu_node(name: str, gpus: int, slots: int = MOST) -> NodeRow:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A10", "nvidia.com/gpu.memory": str(24 * 1024)}
    return NodeRow(name, labels, allocatable={"cpu": 64_000, "pods": slots, "nvidia.com/gpu": gpus})


def plain_node(name: str) -> NodeRow:
    return NodeRow(name, allocatable={"cpu": 64_000, "pods": MOST})


def wants(demand: DeviceDemand) -> PodShape:
    return PodShape(requests=(("cpu", 1000),), devices=demand)


WHOLE = PodShape(requests=(("cpu", 1000), ("nvidia.com/gpu", 1)))


def share(tflops: int, vram_gib: int, gpus: int = 1) -> DeviceDemand:
    return DeviceDemand(gpus, DeviceShare(tflops * 1000, vram_gib * GIB))


def holder(name: str, node: str, devices: str, tflops: int = 25, vram: str = "4Gi", **more: str) -> Pod:
    annotations = {
        "tensor-fusion.ai/tflops-request": str(tflops),
        "tensor-fusion.ai/vram-request": vram,
        "tensor-fusion.ai/gpu-ids": devices,
        **{f"tensor-fusion.ai/{key.replace('_', '-')}": value for key, value in more.items()},
    }
    containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
    metadata = {"name": name, "namespace": "team", "annotations": annotations}
    return decode({"metadata": metadata, "spec": {"nodeName": node, "containers": containers}}, Pod)


demands = st.builds(
    DeviceDemand,
    count=st.integers(1, 3),
    share=st.one_of(
        st.builds(lambda t, v: DeviceShare(t * 25_000, v * 6 * GIB), st.integers(0, 5), st.integers(0, 4)),
        st.builds(lambda percent: DeviceShare(0, 0, percent * 1000, percent * 1000), st.integers(1, 100)),
    ),
    isolation=st.sampled_from(("soft", "soft", "hard", "shared")),
    model=st.sampled_from(("", "A10", "A10", "T4")),
)
placings = st.lists(st.tuples(st.integers(0, 2), demands), max_size=6)


def filled(gpus: list[int], placed: list[tuple[int, DeviceDemand]]) -> tuple[Room, list[list[NaiveDevice]]]:
    """The same pods on the same devices, in a room and in plain loops."""
    cluster = ClusterRoom()
    naive = [
        [NaiveDevice(f"n{node}-gpu-{index}", "A10", A10) for index in range(number)]
        for node, number in enumerate(gpus)
    ]
    for node, number in enumerate(gpus):
        cluster.put_node(gpu_node(f"n{node}", number))
    room = cluster.snapshot()
    for node, demand in placed:
        chosen = [device for device in naive[node % len(gpus)] if device.takes(demand)][: demand.count]
        if len(chosen) == demand.count:
            names = tuple(device.name for device in chosen)
            room = room.minus([PodPlacement(node % len(gpus), wants(demand), devices=names)])
            for device in chosen:
                device.held.append(demand)
    return room, naive


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), placings, demands)
def test_as_many_fit_as_plain_loops_can_place(gpus, placed, demand) -> None:
    room, naive = filled(gpus, placed)
    slots = room.slots.tolist()
    expected = [
        min(slots[row], pods_served(devices, demand, slots[row])) for row, devices in enumerate(naive)
    ]
    assert fits(room, wants(demand)).tolist() == expected
    assert count(room, wants(demand)).total == sum(expected)
    # What is counted can be placed, set after set and all at once.
    assert first_fit(room, [PodGroup(wants(demand), 1)], bound=99).sets == sum(expected)
    after = first_fit(room, [PodGroup(wants(demand), sum(expected))], bound=1).after
    assert not fits(after, wants(demand)).any()


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=3), placings, demands, demands)
def test_relocation_places_what_fits_and_takes_everything_back(gpus, placed, one, other) -> None:
    room, _ = filled(gpus, placed)
    numbers = [room.shapes.intern(wants(demand)) for demand in (one, other)]
    numbers.append(room.shapes.intern(WHOLE))
    order = np.arange(room.n)
    relocation = Relocation(room, order, np.ones(room.n, dtype=np.bool_), numbers)
    before = fits(room, wants(one))
    assert sum(pods for _, pods in relocation.place(numbers[0], 99)) == before.sum()
    relocation.undo(0)
    assert sum(pods for _, pods in relocation.place(numbers[2], 99)) == fits(room, WHOLE).sum()
    relocation.undo(0)
    relocation.place(numbers[1], 2)
    relocation.place(numbers[2], 1)
    relocation.remove(0)
    relocation.undo(0)
    assert [relocation.put(numbers[0], row, int(before[row])) for row in range(room.n) if before[row]] == [
        True
    ] * int((before > 0).sum())


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=3), placings, demands)
def test_nodes_that_go_and_come_take_their_devices_along(gpus, placed, demand) -> None:
    room, _ = filled(gpus, placed)
    by_node = fits(room, wants(demand)).tolist()
    assert fits(room.without(["n0"]), wants(demand)).tolist() == by_node[1:]
    more = room.plus([gpu_node("new", 2), plain_node("plain")])
    idle = pods_served([NaiveDevice("", "A10", A10) for _ in range(2)], demand, MOST)
    assert fits(more, wants(demand)).tolist() == [*by_node, idle, 0]
    assert fits(more.without(["n0", "plain"]), wants(demand)).tolist() == [*by_node[1:], idle]


def test_a_shape_without_devices_never_looks_at_them() -> None:
    cluster = ClusterRoom()
    cluster.put_node(gpu_node("n", 2))
    room = cluster.snapshot()
    room.devices = None
    assert fits(room, PodShape(requests=(("cpu", 1000),))).tolist() == [MOST]
    assert fits(room, wants(share(1, 1))).tolist() == [0]


def test_nobody_has_devices() -> None:
    cluster = ClusterRoom()
    cluster.put_node(plain_node("n"))
    assert cluster.snapshot().devices is None
    assert fits(cluster.snapshot(), wants(share(1, 1))).tolist() == [0]


# What bound pods hold


def test_what_a_pod_holds_is_taken_from_its_device_and_from_the_plugin() -> None:
    cluster = ClusterRoom()
    cluster.upsert_pod(holder("a", "n", "n-gpu-0", tflops=100, vram="20Gi"))
    cluster.put_node(gpu_node("n", 2, slots=20))
    room = cluster.snapshot()
    assert fits(room, wants(share(25, 4))).tolist() == [6]  # one next to it, five on the other
    assert fits(room, wants(share(50, 4, gpus=2))).tolist() == [0]
    assert fits(room, WHOLE).tolist() == [1]
    cluster.remove_pod("team", "a")
    assert fits(cluster.snapshot(), WHOLE).tolist() == [2]
    assert fits(cluster.snapshot(), wants(share(50, 4, gpus=2))).tolist() == [2]
    assert fits(room, WHOLE).tolist() == [1]


def test_what_the_plugin_gave_away_is_not_shared() -> None:
    cluster = ClusterRoom()
    cluster.put_node(gpu_node("n", 2))
    cluster.put_pod("team/whole", WHOLE, "n")
    assert fits(cluster.snapshot(), wants(share(50, 12))).tolist() == [2]
    cluster.upsert_pod(holder("a", "n", "n-gpu-0", tflops=75))
    assert fits(cluster.snapshot(), wants(share(50, 12))).tolist() == [1]
    assert fits(cluster.snapshot(), WHOLE).tolist() == [0]


@pytest.mark.parametrize("devices", ["", "GPU-of-another-node"])
def test_a_device_whose_holder_cannot_be_told_is_not_free(devices: str) -> None:
    cluster = ClusterRoom()
    cluster.put_node(gpu_node("n", 3))
    cluster.upsert_pod(holder("a", "n", devices))
    assert fits(cluster.snapshot(), wants(share(1, 1))).tolist() == [0]
    assert fits(cluster.snapshot(), WHOLE).tolist() == [2]  # it holds one device, whichever


def test_a_pod_that_asks_in_a_way_nobody_understands_may_hold_everything() -> None:
    cluster = ClusterRoom()
    cluster.put_node(gpu_node("n", 3))
    cluster.upsert_pod(holder("a", "n", "n-gpu-0", gpu_count="many"))
    room = cluster.snapshot()
    assert fits(room, wants(share(1, 1))).tolist() == [MOST - 1]  # on the other two
    assert fits(room, wants(UNREADABLE_DEMAND)).tolist() == [0]
    cluster.upsert_pod(holder("a", "n", "", gpu_count="many"))
    assert fits(cluster.snapshot(), WHOLE).tolist() == [0]


def test_devices_that_objects_describe_are_the_truth() -> None:
    cluster = Cluster(Aspect.DEVICES)
    cluster.room.put_node(gpu_node("n", 1))
    status = {
        "phase": "Running",
        "gpuModel": "NVIDIA L4",
        "capacity": {"tflops": "121", "vram": "24Gi"},
        "nodeSelector": {"kubernetes.io/hostname": "n"},
    }
    gpu = {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPU",
        "metadata": {"name": "gpu-1"},
        "status": status,
    }
    assert cluster.load([gpu], 0.0) == []
    on_l4 = DeviceDemand(share=DeviceShare(100_000, GIB), model="L4")
    assert fits(cluster.room.snapshot(), wants(on_l4)).tolist() == [1]
    cluster.room.upsert_pod(holder("a", "n", "gpu-1", tflops=50))
    assert fits(cluster.room.snapshot(), wants(on_l4)).tolist() == [0]
    cluster.load([{**gpu, "status": {**status, "capacity": {"tflops": "lots"}}}], 0.0)
    cluster.room.remove_pod("team", "a")
    assert fits(cluster.room.snapshot(), wants(on_l4)).tolist() == [0], "what cannot be read is not free"
    assert [problem.name for problem in cluster.problems] == ["gpu-1"]
    cluster.load([gpu], 0.0)
    assert fits(cluster.room.snapshot(), wants(on_l4)).tolist() == [1]


def test_rows_that_move_keep_their_devices() -> None:
    cluster = ClusterRoom()
    for name, gpus in (("a", 1), ("b", 0), ("c", 2)):
        cluster.put_node(gpu_node(name, gpus) if gpus else plain_node(name))
    cluster.upsert_pod(holder("p", "c", "c-gpu-1", tflops=125))
    whole = wants(share(125, 1))
    assert fits(cluster.snapshot(), whole).tolist() == [1, 0, 1]
    cluster.remove_node("a")
    room = cluster.snapshot()
    assert {name: int(fits(room, whole)[row]) for row, name in enumerate(room.names)} == {"c": 1, "b": 0}


def test_a_share_and_a_whole_device_do_not_meet() -> None:
    cluster = ClusterRoom()
    cluster.put_node(gpu_node("n", 1))
    room = cluster.snapshot()
    both = [PodGroup(wants(share(1, 1)), 1), PodGroup(WHOLE, 1)]
    assert first_fit(room, both, bound=5).sets == 0
    assert first_fit(room, both[::-1], bound=5).sets == 0
    assert first_fit(room, both[:1], bound=5).sets == 5
    assert fits(room.minus([PodPlacement(0, WHOLE)]), wants(share(1, 1))).tolist() == [0]
    assert fits(room.minus([PodPlacement(0, wants(share(1, 1)))]), WHOLE).tolist() == [0]


def test_why_not() -> None:
    cluster = ClusterRoom()
    for node in (plain_node("plain"), gpu_node("full", 1), gpu_node("free", 1)):
        cluster.put_node(node)
    cluster.upsert_pod(holder("a", "full", "full-gpu-0", tflops=125))
    found = [
        (show_count(refusal), refusal.resolvable)
        for refusal in explain_nodes(cluster.snapshot(), wants(share(50, 4)))
    ]
    assert found == [
        ("1 node: no device for one GPU with 50 TFLOPS, 4Gi VRAM", False),
        ("1 node: devices are taken (asked one GPU with 50 TFLOPS, 4Gi VRAM)", True),
    ]
