import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import EVERYTHING, LabelMatcher, LabelRequirement
from karpool.packing.counting.spread_replicas import spread_replicas
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement
from karpool.packing.topology.constraints import (
    AFFINITY,
    ANTI_AFFINITY,
    EXISTING_ANTI_AFFINITY,
    SPREAD,
    SPREAD_LABEL,
)
from karpool.packing.topology.topology import Topology
from tests.packing.naive_topology import one_by_one
from tests.packing.topology_cases import clusters, shapes, snapshot_of

WEB = LabelMatcher((LabelRequirement("app", "In", frozenset(("web",))),))
OWN = frozenset(("default",))


def web(**fields):
    return PodShape(namespace="default", labels=(("app", "web"),), **fields)


def zones(*names):
    return [
        NodeRow(f"n{number}", {HOSTNAME: f"n{number}", ZONE: name}, (), {"cpu": 1000, "pods": 100})
        for number, name in enumerate(names)
    ]


def mask(topology, shape):
    allowed = topology.allowed(shape)
    return [True] * topology.snapshot.n if allowed is None else allowed.tolist()


@pytest.mark.long
@given(clusters(), shapes)
@settings(max_examples=180, deadline=None)
def test_every_node_gets_the_naive_answer(case, shape):
    expected = [case.naive.allows(shape, row) for row in range(len(case.naive.nodes))]

    assert mask(Topology(case.snapshot), shape) == expected


@pytest.mark.long
@given(clusters(), st.lists(st.tuples(shapes, st.integers(0, 5)), min_size=1, max_size=6), shapes)
@settings(max_examples=120, deadline=None)
def test_placed_pods_count_like_bound_ones(case, placements, shape):
    topology = Topology(case.snapshot)
    for placed, place in placements:
        row = place % len(case.naive.nodes)
        assert mask(topology, placed) == [case.naive.allows(placed, each) for each in range(case.snapshot.n)]
        topology.place(placed, row)
        case.naive.pods.append((placed, row))

    expected = [case.naive.allows(shape, row) for row in range(len(case.naive.nodes))]
    assert mask(topology, shape) == expected
    promised = [PodPlacement(place % case.snapshot.n, placed) for placed, place in placements]
    assert mask(Topology(case.snapshot.minus(promised)), shape) == expected


@pytest.mark.long
@given(clusters(), shapes, shapes, st.data())
@settings(max_examples=100, deadline=None)
def test_taking_a_pod_away_undoes_placing_it(case, shape, other, data):
    topology = Topology(case.snapshot)
    before = mask(topology, shape)
    row = data.draw(st.integers(0, case.snapshot.n - 1))

    topology.place(other, row, 2)
    topology.place(other, row, -2)

    assert mask(topology, shape) == before


@pytest.mark.long
@given(clusters(), shapes, st.data())
@settings(max_examples=180, deadline=None)
def test_many_replicas_go_where_one_after_the_other_would(case, shape, data):
    n = case.snapshot.n
    room = data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    order = data.draw(st.permutations(range(n)))
    limit = data.draw(st.none() | st.integers(0, 6))

    taken = spread_replicas(Topology(case.snapshot), shape, np.array(room), np.array(order), limit)

    expected = one_by_one(case.naive, shape, room, order, limit)
    assert taken.tolist() == expected


def test_zone_spread_fills_evenly_and_stops_at_the_full_zone():
    shape = web(spreads=(TopologySpread(1, ZONE, True, WEB),))
    snapshot = snapshot_of(zones("a", "a", "b", "c"))

    taken = spread_replicas(Topology(snapshot), shape, np.array([50, 50, 50, 3]))

    assert taken.tolist() == [4, 0, 4, 3]


def test_host_anti_affinity_takes_one_per_node():
    shape = web(anti_affinity=(AffinityTerm(WEB, HOSTNAME, OWN),))
    snapshot = snapshot_of(zones("a", "a", "b"), [(web(), 1)])

    taken = spread_replicas(Topology(snapshot), shape, np.array([50, 50, 50]))

    assert taken.tolist() == [1, 0, 1]


def test_the_first_of_a_kind_may_start_and_the_rest_follow_it():
    shape = web(affinity=(AffinityTerm(WEB, ZONE, OWN),))
    snapshot = snapshot_of(zones("a", "b", "b"))

    taken = spread_replicas(Topology(snapshot), shape, np.array([0, 1, 7]))

    assert taken.tolist() == [0, 1, 7]
    assert mask(Topology(snapshot_of(zones("a", "b"), [(web(), 0)])), shape) == [True, False]


def test_a_placed_anti_affinity_keeps_plain_newcomers_away():
    lonely = web(anti_affinity=(AffinityTerm(EVERYTHING, ZONE, OWN),))
    topology = Topology(snapshot_of(zones("a", "b")))
    plain = PodShape(namespace="default")
    assert topology.allowed(plain) is None

    topology.place(lonely, 0)

    assert mask(topology, plain) == [False, True]
    assert topology.allowed(PodShape(namespace="other")) is None


def test_each_refusal_says_which_rule_closed_the_node():
    nodes = [*zones("a", "b"), NodeRow("bare", {HOSTNAME: "bare"}, (), {"pods": 10})]
    lonely = PodShape(namespace="default", anti_affinity=(AffinityTerm(WEB, HOSTNAME, OWN),))
    snapshot = snapshot_of(nodes, [(web(), 0), (lonely, 1)])
    term = AffinityTerm(WEB, ZONE, OWN)
    shape = web(spreads=(TopologySpread(1, ZONE, True, WEB),), affinity=(term,), anti_affinity=(term,))

    found = {reason: closed.tolist() for reason, closed in Topology(snapshot).refusals(shape)}

    assert found == {
        SPREAD: [True, False, False],
        SPREAD_LABEL: [False, False, True],
        AFFINITY: [False, True, True],
        ANTI_AFFINITY: [True, False, False],
        EXISTING_ANTI_AFFINITY: [False, True, False],
    }
