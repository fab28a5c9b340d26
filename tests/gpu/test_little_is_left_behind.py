"""The fragmentation-aware strategy: what it measures, what it prefers, and that it remembers rightly."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from karpool.gpu.scoring_columns import ScoringColumns
from karpool.gpu.strategies.fragmentation import FragmentationStrategy
from karpool.gpu.strategies.fragmentation_score import FragmentationScore
from karpool.gpu.strategies.request_mix import LearnedMix, RequestMix, mix_of_counts, part_of_device, shape_of
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.infeasible import Infeasible
from tests.gpu.devices import GIB, POOL, ask, gpu, node, opened

HALF = DeviceShare(percent_milli=50_000, vram_percent_milli=50_000)
FIFTH = DeviceShare(percent_milli=20_000, vram_percent_milli=20_000)
MOST = DeviceShare(percent_milli=80_000, vram_percent_milli=80_000)


def wanting(share, uid="u", **more):
    return replace(ask(uid), request=share, limit=share, **more)


def whole(uid="u", count=1, **more):
    return replace(ask(uid), request=DeviceShare(), isolation="shared", count=count, **more)


def mix_of(requests):
    return mix_of_counts(Counter(shape_of(request) for request in requests))


def aware(*requests):
    return FragmentationStrategy(mix_of(requests) if requests else None)


def naive_lost(mix, devices, cpu_room, allowed):
    """By the definition: per usual request, the idle of what it cannot use."""
    total = 0.0
    idle = [part_of_device(DeviceShare(free.tflops_milli, free.vram_bytes), cap) for cap, free in devices]
    for shape, weight in mix.weights.items():
        fits = [free == cap if shape.whole else free.covers(shape.share.on(cap)) for cap, free in devices]
        runs = shape.count and sum(fits) >= shape.count and cpu_room >= shape.cpu_milli and allowed(shape)
        total += weight * sum(amount for amount, fit in zip(idle, fits, strict=True) if not (runs and fit))
    return total


usual = st.lists(
    st.builds(
        lambda share, count, cpu, model: replace(
            ask("u"),
            request=share or DeviceShare(),
            isolation="soft" if share else "shared",
            count=count,
            cpu_milli=cpu,
            model=model,
        ),
        st.sampled_from([None, HALF, FIFTH, MOST, DeviceShare(30_000, 4 * GIB)]),
        st.integers(0, 3),
        st.sampled_from([0, 1000, 4000]),
        st.sampled_from(["", "", "A100", "L4"]),
    ),
    min_size=1,
    max_size=12,
)


@given(usual, st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=1, max_size=4), st.integers(0, 5000))
def test_what_is_lost_agrees_with_the_definition(requests, left, cpu_room):
    mix = mix_of(requests)
    table = ScoringColumns(node("node-0", len(left)))
    table.put_node("node-0", cpu_milli=cpu_room, memory_bytes=GIB)
    for row, part in enumerate(left):
        table.free_tflops[row] = int(100_000 * part)
        table.free_vram[row] = int(16 * GIB * part)
    worth = FragmentationScore(table, mix)
    worth.refresh(table)

    devices = [(table.capacity(row), table.free(row)) for row in range(len(left))]
    expected = naive_lost(mix, devices, cpu_room, lambda shape: shape.constraint.model in ("", "A100"))

    assert worth.node_lost[0] == pytest.approx(expected, abs=1e-6)


steps = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "allocate", "allocate", "drop", "narrowed", "device", "room"]),
        st.integers(0, 7),
        st.sampled_from([None, HALF, FIFTH, MOST]),
        st.integers(1, 2),
        st.sampled_from(["", "", "L4"]),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.long
@settings(max_examples=60)
@given(usual, steps)
def test_what_is_remembered_gives_the_same_answer_as_looking_afresh(requests, history):
    mix = mix_of(requests)
    devices = [*node("node-0", 2), *node("node-1", 4), *node("node-2", 1, model="L4")]
    allocator = opened(devices, strategy=FragmentationStrategy(mix))
    for name in ("node-0", "node-1", "node-2"):
        allocator.put_node(name, {}, cpu_milli=9000, memory_bytes=64 * GIB)
    for number, (what, place, share, count, model) in enumerate(history):
        request = wanting(share, f"u{number}") if share else whole(f"u{number}")
        request = replace(request, count=count, cpu_milli=1000, model=model)
        if what == "drop":
            allocator.drop(f"u{place}")
        elif what == "device":
            allocator.remove_device(devices[place % 7].name)
            allocator.put_device(devices[(place + 3) % 7])
        elif what == "room":
            allocator.put_node(f"node-{place % 3}", {}, cpu_milli=place * 1000, memory_bytes=64 * GIB)
        else:
            only = [device.name for device in devices[place:]] if what == "narrowed" else None
            found = allocator.find(request, only)
            afresh = FragmentationStrategy(mix)
            allocator.settings, kept = replace(allocator.settings, strategy=afresh), allocator.settings
            assert allocator.find(request, only) == found
            allocator.settings = kept
            if not isinstance(allocator.try_allocate(request, only=only), Infeasible):
                allocator.commit(request.uid)


def test_a_share_goes_where_the_rest_is_still_of_use():
    """Half a device beside the other half, not on an idle one that whole requests could have."""
    allocator = opened(node("node-0", 2), strategy=aware(whole(), wanting(HALF)))
    allocator.try_allocate(wanting(HALF, "a"))
    taken = allocator.ledger.assumed["a"].allocation.devices

    assert allocator.try_allocate(wanting(HALF, "b")).devices == taken


def test_a_share_fills_the_gap_it_fits_best():
    strategy = aware(whole(), wanting(HALF), wanting(MOST), wanting(FIFTH))
    allocator = opened([gpu("g-0"), gpu("g-1")], strategy=strategy)
    allocator.hold(wanting(MOST, "a"), ["g-0"], 0.0)
    allocator.hold(wanting(HALF, "b"), ["g-1"], 0.0)

    assert allocator.try_allocate(wanting(FIFTH, "c")).devices == ("g-0",)


def test_a_model_that_some_must_have_is_left_to_them():
    devices = [*node("a-scarce", 1, model="H100"), *node("b-plenty", 1, model="L4")]
    usual_requests = [whole(), whole(), whole(model="H100"), whole(model="H100")]
    allocator = opened(devices, strategy=aware(*usual_requests))

    assert allocator.try_allocate(whole("any")).node == "b-plenty"


def test_devices_are_taken_where_their_cpu_is_not_missed():
    """A pod with much CPU goes to the node that has more of it than its GPUs can use."""
    usual_requests = [whole(cpu_milli=8000)] * 3
    allocator = opened([*node("a", 4), *node("b", 4)], strategy=aware(*usual_requests))
    allocator.put_node("a", {}, cpu_milli=32_000, memory_bytes=GIB)
    allocator.put_node("b", {}, cpu_milli=64_000, memory_bytes=GIB)

    assert allocator.try_allocate(whole("u", cpu_milli=16_000)).node == "b"


def test_empty_nodes_stay_empty():
    allocator = opened(
        [each for number in range(4) for each in node(f"node-{number}", 2)], strategy=aware(whole())
    )
    taken = [allocator.try_allocate(whole(f"u{number}")).node for number in range(4)]

    assert Counter(taken) == {"node-0": 2, "node-1": 2}


def test_a_device_without_node_can_still_be_had():
    allocator = opened([gpu("g", "")], strategy=aware(whole()))

    assert allocator.try_allocate(wanting(HALF)).devices == ("g",)


def test_a_node_without_devices_does_not_disturb():
    allocator = opened(node("node-0", 1), strategy=aware(whole(), whole(model="A100")))
    allocator.find(whole())
    allocator.table.put_node("bare", cpu_milli=1000, memory_bytes=GIB)

    assert allocator.find(whole()) == ("node-0-0",)


def test_a_report_that_tells_nothing_new_costs_nothing():
    allocator = opened(node("node-0", 2))
    before = allocator.table.membership, allocator.table.version.tolist()

    allocator.put_device(structs.replace(node("node-0", 2)[0], available=DeviceAmount(1, 1)))

    assert (allocator.table.membership, allocator.table.version.tolist()) == before
    assert allocator.free("node-0-0") == DeviceAmount(100_000, 16 * GIB)


def test_without_a_mix_it_learns_one():
    strategy = aware()
    allocator = opened(node("node-0", 8), strategy=strategy)
    for number in range(6):
        allocator.try_allocate(wanting(HALF, f"u{number}"))
        allocator.try_allocate(wanting(HALF, f"u{number}"))

    assert {shape.share for shape in strategy.learning.mix.weights} == {HALF}


@pytest.mark.long
def test_learning_follows_what_is_asked_now():
    learning = LearnedMix()
    for number in range(20_000):
        learning.observe(wanting(FIFTH, f"old-{number}"))
    for number in range(20_000):
        learning.observe(wanting(HALF, f"new-{number}"))

    weights = learning.mix.weights
    assert weights[shape_of(wanting(HALF))] > 0.5


def test_rare_shapes_are_left_out_of_a_mix():
    mix = mix_of([whole()] * 99 + [wanting(HALF)])

    assert [shape.whole for shape in mix.weights] == [True]


def test_an_empty_mix_ranks_by_idle_alone():
    allocator = opened([*node("a", 2), *node("b", 1)], strategy=FragmentationStrategy(RequestMix()))

    assert allocator.try_allocate(whole()).node == "b"
    assert allocator.devices_of(POOL)


def percent(share):
    return DeviceShare(percent_milli=share * 1000, vram_percent_milli=share * 1000)


def test_a_share_goes_where_it_fits_exactly_though_another_node_has_less_idle():
    """Whole devices keep nodes empty where that costs little; for a share every thousandth counts."""
    usual_requests = [wanting(percent(35)), wanting(percent(47)), *(whole(f"w{n}") for n in range(30))]
    devices = [*node("exact", 2), *node("loose", 1)]
    allocator = opened(devices, strategy=aware(*usual_requests))
    for uid, share, device in (("a", 65, "exact-0"), ("b", 47, "loose-0")):
        allocator.restore(wanting(percent(share), uid), [device])

    placed = allocator.try_allocate(wanting(percent(35), "c"), 0.0)
    of_whole = opened(devices, strategy=aware(*usual_requests)).try_allocate(whole("d"), 0.0)

    assert placed.devices == ("exact-0",)
    assert of_whole.devices == ("loose-0",)
