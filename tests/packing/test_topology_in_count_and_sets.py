"""Counting and first fit where other pods matter, against loops that look at every pod."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape
from karpool.model.labels import parse_selector
from karpool.model.taints import untolerated
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import PodGroup, first_fit
from karpool.packing.fit_reasons import explain_nodes
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement
from tests.packing.deducting import deduct
from tests.packing.naive_topology import NaiveCluster, node_matches, one_by_one
from tests.packing.topology_cases import NAMESPACES, node_rows, shapes, snapshot_of


@st.composite
def small_clusters(draw):
    """Nodes with a few slots each, and the naive twin of the same."""
    rows = [
        replace(row, allocatable={"cpu": 9, "pods": draw(st.integers(0, 4))}) for row in draw(node_rows())
    ]
    pods = draw(st.lists(st.tuples(shapes, st.integers(0, len(rows) - 1)), max_size=4))
    return NaiveCluster(rows, NAMESPACES, list(pods)), snapshot_of(rows, pods)


def room_of(cluster, shape):
    """Free slots of the nodes that the shape may run on at all."""
    return [
        max(row.allocatable["pods"] - sum(place == number for _, place in cluster.pods), 0)
        if node_matches(shape, row) and untolerated(row.taints, shape.tolerations) is None
        else 0
        for number, row in enumerate(cluster.nodes)
    ]


def place(cluster, shape, order, replicas):
    return sum(one_by_one(cluster, shape, room_of(cluster, shape), order, replicas))


def naive_sets(cluster, components, order, bound):
    for done in range(bound):
        for shape, replicas in components:
            if place(cluster, shape, order, replicas) < replicas:
                return done
    return bound


def pods_by_node(cluster):
    return [sum(where == row for _, where in cluster.pods) for row in range(len(cluster.nodes))]


def bound_by_node(snapshot):
    totals = [0] * snapshot.n
    for node, pods in zip(snapshot.bound.node.tolist(), snapshot.bound.count.tolist(), strict=True):
        totals[node] += pods
    return totals


component_lists = st.lists(st.tuples(shapes, st.integers(0, 3)), min_size=1, max_size=3).filter(
    lambda components: any(replicas for _, replicas in components)
)


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(small_clusters(), shapes)
def test_count_is_what_a_scheduler_reaches_pod_by_pod(case, shape):
    cluster, snapshot = case

    answer = count(snapshot, shape)

    assert answer.per_node.tolist() == one_by_one(
        cluster, shape, room_of(cluster, shape), snapshot.order.tolist()
    )


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(small_clusters(), component_lists, st.integers(1, 6))
def test_sets_are_placed_as_pod_by_pod_would(case, components, bound):
    cluster, snapshot = case

    result = first_fit(snapshot, [PodGroup(*component) for component in components], bound=bound)

    assert result.sets == naive_sets(cluster, components, snapshot.order.tolist(), bound)
    assert bound_by_node(result.after) == pods_by_node(cluster)


@settings(max_examples=80, deadline=None)
@given(small_clusters(), st.lists(component_lists, max_size=3))
def test_workloads_meet_those_deducted_before(case, workloads):
    cluster, snapshot = case

    after = deduct(snapshot, [[PodGroup(*component) for component in components] for components in workloads])

    for components in workloads:
        naive_sets(cluster, components, snapshot.order.tolist(), 1)
    assert bound_by_node(after) == pods_by_node(cluster)


@settings(max_examples=80, deadline=None)
@given(small_clusters(), shapes)
def test_every_node_that_does_not_take_the_pod_has_one_reason(case, shape):
    cluster, snapshot = case
    room = room_of(cluster, shape)
    closed = [row for row in range(len(room)) if not room[row] or not cluster.allows(shape, row)]

    assert sum(refusal.count for refusal in explain_nodes(snapshot, shape)) == len(closed)


def test_a_promised_pod_keeps_away_whom_it_cannot_stand():
    mine = AffinityTerm(parse_selector("app=web"), "kubernetes.io/hostname", frozenset(("shop",)))
    hermit = PodShape(requests=(("cpu", 1000),), namespace="shop", anti_affinity=(mine,))
    web = PodShape(requests=(("cpu", 1000),), namespace="shop", labels=(("app", "web"),))
    rows = [
        NodeRow(name, labels={"kubernetes.io/hostname": name}, allocatable={"cpu": 5000, "pods": 10})
        for name in ("a", "b")
    ]
    promised = snapshot_of(rows, []).minus([PodPlacement(0, hermit)])

    assert count(promised, web).per_node.tolist() == [0, 5]
