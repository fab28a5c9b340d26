import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.gpu import device_filters
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.gpu.scoring_columns import ScoringColumns
from karpool.gpu.strategies import registry as strategies
from karpool.gpu.strategies.strategy import COMPACT_FIRST, LOW_LOAD_FIRST, NODE_COMPACT, by_load
from karpool.gpu.strategies.strategy_name import StrategyName
from karpool.manager.options import InvalidOptions, read_options
from tests.gpu import naive
from tests.gpu.devices import POOL, ask, gpu, node, pools, requests

MODES = (COMPACT_FIRST, LOW_LOAD_FIRST, NODE_COMPACT)


def surviving(devices, request, policy):
    table = ScoringColumns(devices)
    found = device_filters.run_filters(
        table, table.rows_of_pool(request.pool), device_filters.device_filters(request, policy)
    )
    return table, found


@given(pools(), requests(), st.sampled_from(["Static", "Dynamic"]))
def test_the_chain_keeps_what_a_plain_loop_keeps(devices, request, policy):
    table, found = surviving(devices, request, policy)

    expected = naive.on_one_node(naive.candidates(devices, request, policy), request.count)

    assert {table.device(int(row)).name for row in found.rows} == {each.name for each in expected}


@given(pools(), requests(), st.sampled_from(MODES))
def test_a_strategy_takes_what_a_plain_loop_takes(devices, request, mode):
    table, found = surviving(devices, request, "Static")
    rows = found.rows[table.node[found.rows] >= 0]

    taken = by_load(mode).choose(table, rows, request) if len(rows) else []

    kept = naive.on_one_node(naive.candidates(devices, request, "Static"), request.count)
    expected = naive.chosen(devices, [each for each in kept if each.node], request, mode)
    assert [table.device(row).name for row in taken] == (expected or [])


@pytest.mark.long
@given(pools(), requests(), st.sampled_from(MODES), st.randoms(use_true_random=False))
def test_the_order_in_which_devices_came_does_not_matter(devices, request, mode, order):
    shuffled = random.Random(order.random()).sample(devices, len(devices))
    answers = []
    for each in (devices, shuffled):
        table, found = surviving(each, request, "Static")
        rows = found.rows[table.node[found.rows] >= 0]
        taken = by_load(mode).choose(table, rows, request) if len(rows) else []
        answers.append([table.device(row).name for row in taken])

    assert answers[0] == answers[1]


@pytest.mark.long
@given(pools(), requests())
def test_the_trace_of_a_chain_adds_up(devices, request):
    _, found = surviving(devices, request, "Static")

    steps = found.dropped
    assert all(step.after <= step.before for step in steps)
    assert all(one.after == other.before for one, other in pairwise(steps))
    if steps:
        assert steps[-1].after == len(found.rows)


@given(pools(), requests())
def test_filters_change_nothing(devices, request):
    table = ScoringColumns(devices)
    before = {name: getattr(table, name).copy() for name in ("free_tflops", "free_vram", "lock", "version")}

    device_filters.run_filters(
        table, table.rows_of_pool(request.pool), device_filters.device_filters(request, "Static")
    )

    assert all((getattr(table, name) == kept).all() for name, kept in before.items())


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        pytest.param((0.7, 0.3), "node-1", id="memory counts more"),
        pytest.param((0.0, 1.0), "node-0", id="compute alone"),
    ],
)
def test_weights_decide_which_node_is_fuller(weights, expected):
    table = ScoringColumns([gpu("a", "node-0"), gpu("b", "node-1")])
    table.free_tflops[0] = 20_000
    table.free_vram[1] = 2**30

    taken = by_load(COMPACT_FIRST, *weights).choose(table, table.rows_of_pool(POOL), ask())

    assert table.device(taken[0]).node == expected


def test_the_node_that_is_used_is_preferred_and_its_idle_device_is_taken():
    table = ScoringColumns([*node("node-0", 2), *node("node-1", 2)])
    table.free_tflops[2] = table.free_vram[2] = 0

    taken = by_load(NODE_COMPACT).choose(table, table.rows_of_pool(POOL), ask())

    assert [table.device(row).name for row in taken] == ["node-1-1"]


@pytest.mark.parametrize("name", StrategyName)
def test_a_strategy_is_known_by_its_name(name):
    assert strategies.named(name).name == name


def test_an_unknown_strategy_is_refused_with_those_there_are():
    with pytest.raises(InvalidOptions, match="--strategy: 'Fastest': must be one of NodeCompactGPULowLoad"):
        read_options(GpuScalerOptions, {"strategy": "Fastest"})
