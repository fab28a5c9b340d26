"""Constraints that have no closed form together: several spreads, and spreads with anti-affinity."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.packing.counting.spread_replicas import spread_replicas
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.topology.topology import Topology
from tests.packing.naive_topology import NaiveCluster, one_by_one
from tests.packing.topology_cases import NAMESPACES, RACK, snapshot_of

WEB = LabelMatcher((LabelRequirement("app", "In", frozenset(("web",))),))
PLAIN = PodShape(namespace="default", labels=(("app", "web"),))


@st.composite
def spread_cases(draw):
    """Every pod counts for every constraint, and nodes have room for several."""
    nodes = []
    for number in range(draw(st.integers(2, 8))):
        labels = {HOSTNAME: f"n{number}", ZONE: draw(st.sampled_from("abc"))}
        if draw(st.integers(0, 5)):
            labels[RACK] = draw(st.sampled_from(["r1", "r2", "r3"]))
        nodes.append(NodeRow(f"n{number}", labels, (), {"cpu": 1000, "pods": 100}))
    keys = draw(st.lists(st.sampled_from([ZONE, HOSTNAME, RACK]), min_size=2, max_size=3, unique=True))
    spreads = tuple(
        TopologySpread(draw(st.integers(1, 3)), key, True, WEB, draw(st.integers(1, 3))) for key in keys
    )
    apart = draw(st.sampled_from([(), (), (), (AffinityTerm(WEB, RACK, frozenset(("default",))),)]))
    together = draw(st.sampled_from([(), (), (AffinityTerm(WEB, ZONE, frozenset(("default",))),)]))
    shape = PodShape(
        namespace="default",
        labels=(("app", "web"),),
        spreads=spreads,
        anti_affinity=apart,
        affinity=together,
    )
    bound = draw(st.lists(st.integers(0, len(nodes) - 1), max_size=4))
    room = draw(st.lists(st.integers(0, 6), min_size=len(nodes), max_size=len(nodes)))
    order = draw(st.permutations(range(len(nodes))))
    return nodes, [(PLAIN, row) for row in bound], shape, room, order, draw(st.none() | st.integers(0, 12))


@pytest.mark.long
@given(spread_cases())
@settings(max_examples=200, deadline=None)
def test_replicas_go_where_one_after_the_other_would(case):
    nodes, bound, shape, room, order, limit = case

    taken = spread_replicas(
        Topology(snapshot_of(nodes, bound)), shape, np.array(room), np.array(order), limit
    )

    assert taken.tolist() == one_by_one(NaiveCluster(nodes, NAMESPACES, bound), shape, room, order, limit)


def test_hosts_of_a_small_zone_hold_back_those_of_a_large_one():
    zones = ["a", "b", "b", "b", "b"]
    nodes = [
        NodeRow(f"n{n}", {HOSTNAME: f"n{n}", ZONE: zone}, (), {"pods": 9}) for n, zone in enumerate(zones)
    ]
    shape = PodShape(
        namespace="default",
        labels=(("app", "web"),),
        spreads=(TopologySpread(1, ZONE, True, WEB), TopologySpread(1, HOSTNAME, True, WEB)),
    )

    taken = spread_replicas(Topology(snapshot_of(nodes)), shape, np.array([9] * 5))

    # Zone a stops at one pod while a host of zone b is empty, and zone b may be one ahead of zone a.
    assert taken.tolist() == [1, 1, 1, 0, 0]


def test_the_cases_place_pods_and_are_held_back():
    seen = Counter()

    @given(spread_cases())
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    def look(case):
        nodes, bound, shape, room, order, limit = case
        placed = sum(one_by_one(NaiveCluster(nodes, NAMESPACES, bound), shape, room, order, limit))
        seen.update(several=placed > 3, held_back=0 < placed < sum(room))

    look()

    assert seen["several"] > 15
    assert seen["held_back"] > 25
