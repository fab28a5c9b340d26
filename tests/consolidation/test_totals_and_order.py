import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.consolidation.policy.prices import worst_launch_price
from karpool.consolidation.policy.scoring import (
    PoolMember,
    PoolTotals,
    interleaved,
    node_cost,
    pool_totals,
    ratios,
)
from karpool.model.catalogue.catalogue import Offering
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod

nodes = st.lists(
    st.builds(
        PoolMember,
        pool=st.sampled_from("abc"),
        disruption=st.floats(1, 1000),
        price_per_hour=st.none() | st.floats(0, 100) | st.just(math.nan),
    ),
    max_size=12,
)


@given(nodes, st.randoms())
def test_pool_totals_do_not_depend_on_the_order_of_nodes(found, rng):
    shuffled = list(found)
    rng.shuffle(shuffled)

    assert pool_totals(shuffled) == pool_totals(found)


def test_an_unknown_price_does_not_poison_a_total():
    found = pool_totals([PoolMember("a", 2, 1.5), PoolMember("a", 3, None), PoolMember("a", 1, math.nan)])

    assert found == {"a": PoolTotals(1.5, 6, nodes=3, unpriced=2)}


def test_a_claim_without_a_node_counts_as_one():
    assert pool_totals([PoolMember("a", node_cost([]), 1.0)])["a"].disruption == 1.0


def pod(**spec):
    return decode({"metadata": {"name": "p", "annotations": spec.pop("annotations", {})}, "spec": spec}, Pod)


def test_pods_that_cost_nothing_do_not_make_a_node_cheaper():
    free = pod(priority=-(10**9))
    assert node_cost([free, free, pod()]) == 2.0


def test_what_has_no_price_is_looked_at_last():
    found = ratios(np.array([math.nan, 2.0, 1.0, math.inf]), np.array([1.0, 4.0, 1.0, 1.0]))

    assert found.tolist() == [0.0, 0.5, 1.0, 0.0]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4)),
    st.lists(st.sampled_from("abcdx"), unique=True),
)
def test_pools_take_turns_and_nobody_is_left_out(sizes, first):
    groups = {pool: [f"{pool}{number}" for number in range(size)] for pool, size in sizes.items()}

    found = interleaved(groups, first)

    assert sorted(found) == sorted(name for group in groups.values() for name in group)
    rounds = [int(name[1:]) for name in found]
    assert rounds == sorted(rounds)


def offering(price, capacity_type="on-demand", zone="z1", available=True):
    return Offering(zone, capacity_type, price, available)


def everything(_):
    return True


@pytest.mark.parametrize(
    ("offerings", "worst"),
    [
        pytest.param([], None, id="none"),
        pytest.param([offering(0.2, "spot"), offering(0.9)], 0.2, id="spot comes before on-demand"),
        pytest.param([offering(0.2, "spot"), offering(0.5, "spot", "z2")], 0.5, id="the dearest zone"),
        pytest.param([offering(0.2, "spot", available=False), offering(0.9)], 0.9, id="out of stock"),
        pytest.param([offering(0.2), offering(None, zone="z2")], None, id="an unknown price may be worse"),
    ],
)
def test_prices_of_a_launch(offerings, worst):
    assert worst_launch_price(offerings, everything) == worst
