"""Several devices of one node: those that are linked best go together, and links never change the node."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from karpool.gpu.allocation.allocation import GpuAllocation
from karpool.gpu.allocation.allocator import Allocator
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device import RUNNING, Device
from karpool.model.devices.links import belonging_together, read_links, tier
from karpool.model.devices.request import GpuRequest

GIB = 2**30
PATHS = ("NV4", "NV18", "PIX", "PHB", "NODE", "SYS", "what", "")


def device(index: int, node: str = "a", links: tuple[tuple[str, str], ...] = ()) -> Device:
    amount = DeviceAmount(100_000, 24 * GIB)
    return Device(
        f"{node}-{index}",
        node,
        node,
        "p",
        RUNNING,
        index=index,
        capacity=amount,
        available=amount,
        links=links,
    )


def request(count: int) -> GpuRequest:
    return GpuRequest("u", pool="p", request=DeviceShare(1000, GIB), count=count)


def test_two_devices_are_the_two_that_are_linked() -> None:
    allocator = Allocator()
    for index in range(4):
        pair = {0: 3, 3: 0, 1: 2, 2: 1}[index]
        paths = tuple((f"a-{peer}", "NV12" if peer == pair else "SYS") for peer in range(4) if peer != index)
        allocator.put_device(device(index, links=paths))
    allocator.open()

    answer = allocator.try_allocate(request(2))

    assert isinstance(answer, GpuAllocation)
    assert set(answer.devices) in ({"a-0", "a-3"}, {"a-1", "a-2"})


def test_without_links_the_choice_is_as_it_was() -> None:
    allocator = Allocator()
    for index in range(4):
        allocator.put_device(device(index))
    allocator.open()

    answer = allocator.try_allocate(request(2))

    assert isinstance(answer, GpuAllocation)
    assert answer.devices == ("a-0", "a-1")


@given(
    st.integers(1, 5),
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 5)), st.sampled_from(PATHS)),
)
def test_no_other_set_of_devices_is_nearer(count: int, paths: dict[tuple[int, int], str]) -> None:
    names = [f"gpu-{index}" for index in range(6)]
    links: dict[str, dict[str, str]] = {}
    for (one, other), path in paths.items():
        links.setdefault(names[one], {})[names[other]] = path

    chosen = belonging_together(names, count, links)

    def distance(group: tuple[str, ...]) -> tuple[int, int]:
        tiers = [tier(links, one, other) for one, other in combinations(group, 2)]
        return max(tiers, default=0), sum(tiers)

    assert len(set(chosen)) == count
    if count > 1 and links:
        assert distance(chosen) == min(distance(group) for group in combinations(names, count))


def test_sixteen_devices_are_not_tried_in_every_combination() -> None:
    names = [f"gpu-{index:02}" for index in range(16)]
    links = {
        one: {other: "NV12" if (index // 8) == (names.index(other) // 8) else "SYS" for other in names}
        for index, one in enumerate(names)
    }

    chosen = belonging_together([*names[1:], names[0]], 8, links)

    assert {names.index(name) // 8 for name in chosen} in ({0}, {1})


def test_links_that_cannot_be_read_are_not_told() -> None:
    for text in ("", "[]", "{", '{"a": 1}', "[" * 100_000, '{"GPU-A": "NV4"}'):
        assert read_links(text) in ((), (("gpu-a", "NV4"),))
