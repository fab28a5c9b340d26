"""Hardware partitions as room: what is left of a device is what its driver could still cut off it."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import DevicePartition
from karpool.model.devices.isolation import PARTITIONED
from karpool.model.devices.partitions import PARTITIONS, written_form, written_partitions
from karpool.model.devices.request import DeviceDemand
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.packing.counting.count import count, fits
from karpool.packing.counting.first_fit import PodGroup, first_fit
from karpool.packing.tables.device_table import DeviceFilling
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room

T = "tensor-fusion.ai/"
# Of an H200, as its driver says: slots, starts, compute.
PROFILES = {
    "1g.18gb": (1, range(7)),
    "1g.35gb": (2, (0, 2, 4, 6)),
    "2g.35gb": (2, (0, 2, 4)),
    "3g.71gb": (4, (0, 4)),
    "4g.71gb": (4, (0,)),
    "7g.141gb": (8, (0,)),
}
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771"}


def h200_node(name: str, gpus: int) -> NodeRow:
    allocatable = {"cpu": 64_000, "memory": 2**40, "pods": 200, "nvidia.com/gpu": gpus}
    return NodeRow(name, {**LABELS, "kubernetes.io/hostname": name}, allocatable=allocatable)


def worker(name: str, profile: str, node: str = "", device: str = "", partitions: str = "") -> Pod:
    annotations = {T + "isolation": "partitioned", T + "partition-id": profile}
    if device:
        annotations[T + "gpu-ids"] = device
    if partitions:
        annotations[PARTITIONS] = partitions
    meta = {"name": name, "namespace": "team", "annotations": annotations}
    return decode({"metadata": meta, "spec": {"nodeName": node, "containers": [{"name": "c"}]}}, Pod)


def wants(profile: str) -> PodShape:
    return shape_of(worker("w", profile))


class NaiveCard:
    """One card and its slices, tried one by one."""

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def free(self, profile: str, taken: set[int]) -> list[int]:
        size, starts = PROFILES[profile]
        return [start for start in starts if not taken & set(range(start, start + size))]

    def cut(self, profile: str) -> int | None:
        size, _ = PROFILES[profile]
        best, most = None, -1
        for start in self.free(profile, self.taken):
            then = self.taken | set(range(start, start + size))
            # The first profile has a twin with media engines, which counts, too.
            left = sum(len(self.free(other, then)) for other in (*PROFILES, "1g.18gb"))
            if left > most:
                best, most = start, left
        if best is not None:
            self.taken |= set(range(best, best + size))
        return best

    def more(self, profile: str) -> int:
        before, found = set(self.taken), 0
        while self.cut(profile) is not None:
            found += 1
        self.taken = before
        return found


profiles = st.sampled_from(sorted(PROFILES))


Cards = list[list[NaiveCard]]


def filled(gpus: Sequence[int], cuts: Sequence[tuple[int, str]], *, is_written: bool) -> tuple[Room, Cards]:
    cluster = ClusterRoom()
    cards = [[NaiveCard() for _ in range(number)] for number in gpus]
    for node, number in enumerate(gpus):
        cluster.put_node(h200_node(f"n{node}", number))
    for number, (any_node, profile) in enumerate(cuts):
        node = any_node % len(gpus)
        for index, card in enumerate(cards[node]):
            start = card.cut(profile)
            if start is not None:
                place = written_form([DevicePartition(profile, start)]) if is_written else ""
                device = f"n{node}-gpu-{index}"
                cluster.upsert_pod(worker(f"p{number:02}", profile, f"n{node}", device, place))
                break
    return cluster.snapshot(), cards


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), profiles), max_size=8),
    profiles,
    st.booleans(),
)
def test_as_many_fit_as_the_driver_would_cut(gpus, cuts, profile, is_written) -> None:
    room, cards = filled(gpus, cuts, is_written=is_written)
    expected = [sum(card.more(profile) for card in node) for node in cards]

    assert fits(room, wants(profile)).tolist() == expected
    assert count(room, wants(profile)).total == sum(expected)
    assert first_fit(room, [PodGroup(wants(profile), 1)], bound=99).sets == sum(expected)
    after = first_fit(room, [PodGroup(wants(profile), sum(expected))], bound=1).after
    assert not fits(after, wants(profile)).any()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.just(0), profiles), max_size=5), profiles, profiles)
def test_what_was_cut_can_be_taken_back(cuts, first, second) -> None:
    room, _ = filled([2], cuts, is_written=True)
    assert room.devices is not None
    filling = DeviceFilling(room.devices)
    demands = [wants(profile).devices for profile in (first, second)]
    before = [filling.room_on(0, demand) for demand in demands if demand]
    taken = [filling.take(0, demand) for demand in demands if demand]
    for step in reversed(taken):
        if step is not None:
            filling.undo(step)
    assert [filling.room_on(0, demand) for demand in demands if demand] == before


def test_a_card_is_seven_small_slices_and_no_share_beside_them() -> None:
    cuts = [(0, "1g.18gb")] * 7
    room, _ = filled([1], cuts, is_written=False)

    assert fits(filled([1], [], is_written=False)[0], wants("1g.18gb")).tolist() == [7]
    assert fits(room, wants("1g.18gb")).tolist() == [0]
    assert fits(room, PodShape(requests=(("nvidia.com/gpu", 1),))).tolist() == [0]


def test_a_card_without_slices_has_no_room_for_one() -> None:
    cluster = ClusterRoom()
    labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
    cluster.put_node(NodeRow("n", labels, allocatable={"pods": 10, "nvidia.com/gpu": 1}))

    assert fits(cluster.snapshot(), wants("1g.18gb")).tolist() == [0]


@pytest.mark.parametrize("written", ["1g.18gb@9", "no-such-profile@0", "1g.18gb@0,", "@", "x" * 20_000])
def test_places_that_cannot_be_do_not_make_room(written) -> None:
    cluster = ClusterRoom()
    cluster.put_node(h200_node("n", 1))
    cluster.upsert_pod(worker("p", "7g.141gb", "n", "n-gpu-0", written))

    assert fits(cluster.snapshot(), wants("1g.18gb")).tolist() == [0]


@given(st.lists(st.builds(DevicePartition, profiles, start=st.integers(0, 7)), max_size=8))
def test_what_is_written_is_read_back(partitions) -> None:
    assert written_partitions(written_form(partitions)) == tuple(partitions)
    assert written_partitions("vir02#1") == (DevicePartition("vir02", group=1),)


def test_a_demand_says_what_it_takes() -> None:
    room, _ = filled([1], [(0, "3g.71gb")], is_written=True)
    assert room.devices is not None
    demand = wants("2g.35gb").devices
    assert demand == DeviceDemand(isolation=PARTITIONED, template="2g.35gb")
    taken = room.devices.kinds[0].taken_by(demand)
    assert taken.vram_bytes == 32 * 2**30 and taken.tflops_milli > DeviceAmount(0).tflops_milli
