"""How many nodes are asked for: never fewer than what fits, never more than biggest first would take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.gpu.scale_up.demand import GIB, WaitingWorker, size
from karpool.gpu.scale_up.fill_order import best_order
from karpool.gpu.scale_up.node_bins import BinPacking, fresh_bin, groups
from karpool.model.devices.amounts import DeviceShare
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.request import GpuRequest

BRINGS = NodeYield(2, 100_000, 24 * GIB, 16_000, 64 * GIB)
_SIZES = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 100), st.integers(1, 2)), max_size=25)


def items(sizes: list[tuple[int, int, int]]) -> list[WaitingWorker]:
    found = [
        WaitingWorker(
            GpuRequest(
                uid=f"w{number}",
                pool="p",
                request=DeviceShare(tflops * 1000, gib * GIB),
                count=count,
                cpu_milli=100,
                memory_bytes=GIB,
            ),
            float(number),
        )
        for number, (gib, tflops, count) in enumerate(sizes)
    ]
    return sorted(found, key=lambda item: tuple(-part for part in size(item)))


def packed(order: list[WaitingWorker]) -> BinPacking:
    packing = BinPacking()
    for item in order:
        assert packing.put_all(
            [item], lambda _: fresh_bin(str(len(packing.bins)), BRINGS, lambda item, room: True)
        )
    return packing


@pytest.mark.long
@given(_SIZES)
def test_the_chosen_order_is_the_same_items_and_no_worse(sizes: list[tuple[int, int, int]]) -> None:
    given_ = items(sizes)

    order = best_order(given_, BRINGS)

    assert sorted(item.uid for item in order) == sorted(item.uid for item in given_)
    assert len(packed(order).bins) <= len(packed(given_).bins)


@pytest.mark.long
@given(_SIZES)
def test_nothing_is_packed_twice_or_over_the_edge(sizes: list[tuple[int, int, int]]) -> None:
    packing = packed(best_order(items(sizes), BRINGS))

    placed = [placement.item.uid for bin_ in packing.bins for placement in bin_.placed]
    assert len(placed) == len(set(placed)) == len(sizes)
    for bin_ in packing.bins:
        for room in bin_.rooms:
            taken = [
                room.cost(placement.item)
                for placement in bin_.placed
                if any(chosen is room for chosen in placement.rooms)
            ]
            assert sum(cost.vram_bytes for cost in taken) <= BRINGS.vram_bytes
            assert sum(cost.tflops_milli for cost in taken) <= BRINGS.tflops_milli
        assert all(len({id(room) for room in p.rooms}) == p.item.request.count for p in bin_.placed)


@given(_SIZES, st.integers(0, 3))
def test_what_is_undone_was_never_there(sizes: list[tuple[int, int, int]], nodes: int) -> None:
    def fixed() -> BinPacking:
        return BinPacking(fresh_bin(str(number), BRINGS, lambda item, room: True) for number in range(nodes))

    waiting = items(sizes)
    packing = fixed()
    fits = packing.put_all(waiting)

    if not fits:
        assert not any(bin_.placed for bin_ in packing.bins)
        fresh = fixed()
        for item in waiting:
            assert (packing.put(item) is None) == (fresh.put(item) is None)


def test_sizes_that_do_not_divide_a_device_are_combined() -> None:
    one = NodeYield(1, 100_000, 22 * GIB, 16_000, 64 * GIB)
    mixed = [(gib, 1, 1) for gib in (14, 10, 7, 4) for _ in range(10)]

    order = best_order(items(mixed), one)

    packing = BinPacking()
    for item in order:
        packing.put_all([item], lambda _: fresh_bin(str(len(packing.bins)), one, lambda item, room: True))
    assert len(packing.bins) == 17  # biggest first takes 17 or more; the total volume alone needs 16
    assert len(groups(items(mixed))) == 40
