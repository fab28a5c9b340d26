"""The vectorised kernel against four nested loops."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import NodeTerm, value_set
from karpool.model.taints import Toleration
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import NodeFilling, PodGroup, first_fit
from karpool.packing.feasibility import feasible
from karpool.packing.fit_reasons import explain_nodes
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement
from tests.fleet.invariants import matches
from tests.packing.cases import (
    allocatables,
    built,
    clusters,
    label_keys,
    label_values,
    node_lists,
    plain_shapes,
    requests,
    shapes,
)
from tests.packing.deducting import deduct
from tests.packing.naive import admits, best_sets, has_room, naive_count, naive_nodes, naive_sets

component_lists = st.lists(st.tuples(shapes, st.integers(0, 3)), min_size=1, max_size=3)


def free_amounts(snapshot):
    return {
        name: {
            "pods": int(snapshot.slots[row]),
            **{resource: int(snapshot.free(resource)[row]) for resource in snapshot.resources},
        }
        for row, name in enumerate(snapshot.names)
    }


def same_room(nodes, snapshot):
    found = free_amounts(snapshot)
    return all(found[node.name][resource] == units for node in nodes for resource, units in node.free.items())


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(clusters(), shapes)
def test_feasible_nodes(cluster, shape):
    nodes = naive_nodes(cluster.rows, cluster.pods)

    mask = feasible(cluster.snapshot, shape)

    by_name = dict(zip(cluster.snapshot.names, mask.tolist(), strict=True))
    assert by_name == {node.name: admits(node, shape) for node in nodes}


expressions = st.builds(
    lambda key, condition: {"key": key, "operator": condition[0], "values": condition[1]},
    label_keys,
    st.one_of(
        st.tuples(st.sampled_from(["In", "NotIn"]), st.lists(label_values, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["Exists", "DoesNotExist"]), st.just([])),
    ),
)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(node_lists(1), st.lists(st.lists(expressions, min_size=1, max_size=2), min_size=1, max_size=2))
def test_node_affinity_alone_means_what_the_api_says(rows, alternatives):
    """Next to other constraints an operator seldom decides anything; here it always does."""
    terms = tuple(
        NodeTerm(tuple((each["key"], value_set(each["operator"], each["values"])) for each in term))
        for term in alternatives
    )
    shape = PodShape(node_terms=terms, tolerations=(Toleration(operator="Exists"),))
    snapshot = built(rows, []).snapshot

    mask = feasible(snapshot, shape)

    assert dict(zip(snapshot.names, mask.tolist(), strict=True)) == {
        row.name: any(all(matches(each, row.labels) for each in term) for term in alternatives)
        for row in rows
    }


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(clusters(), shapes)
def test_count_is_what_placing_one_by_one_reaches(cluster, shape):
    nodes = naive_nodes(cluster.in_order(), cluster.pods)

    answer = count(cluster.snapshot, shape)

    assert answer.total == naive_count(nodes, shape)
    assert answer.total == int(answer.per_node.sum())


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(clusters(), shapes, st.integers(0, 12))
def test_a_limit_caps_the_count_and_says_where(cluster, shape, limit):
    whole = count(cluster.snapshot, shape)
    nodes = naive_nodes(cluster.in_order(), cluster.pods)

    answer = count(cluster.snapshot, shape, limit=limit)

    assert answer.total == min(whole.total, limit)
    naive_count(nodes, shape, limit)
    after = cluster.snapshot.minus(
        PodPlacement(row, shape, pods) for row, pods in enumerate(answer.per_node.tolist()) if pods
    )
    assert same_room(nodes, after)


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(clusters(), shapes)
def test_what_was_counted_can_be_placed(cluster, shape):
    answer = count(cluster.snapshot, shape)

    result = first_fit(cluster.snapshot, [PodGroup(shape, 1)])

    assert result.sets == answer.total
    assert count(result.after, shape).total == 0


@settings(max_examples=80, deadline=None)
@given(clusters(), component_lists, st.integers(0, 20))
def test_first_fit_places_sets_as_pod_by_pod_would(cluster, components, bound):
    nodes = naive_nodes(cluster.in_order(), cluster.pods)

    result = first_fit(cluster.snapshot, [PodGroup(*component) for component in components], bound=bound)

    assert result.sets == naive_sets(nodes, components, bound)
    assert same_room(nodes, result.after)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 10**9), st.lists(st.tuples(st.integers(1, 50), st.integers(0, 4)), min_size=1, max_size=3)
)
def test_large_nodes_hold_as_many_sets_as_arithmetic_says(cores, parts):
    assume(any(replicas for _, replicas in parts))
    snapshot = built([NodeRow("n0", allocatable={"cpu": cores, "pods": 10**12})]).snapshot
    components = [PodGroup(PodShape((("cpu", units),)), replicas) for units, replicas in parts]

    result = first_fit(snapshot, components)

    per_set = sum(units * replicas for units, replicas in parts)
    assert result.sets == min(cores // per_set, 2**31 - 1)


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(clusters(), st.lists(component_lists, max_size=4))
def test_workloads_are_deducted_one_after_the_other(cluster, workloads):
    nodes = naive_nodes(cluster.in_order(), cluster.pods)

    after = deduct(
        cluster.snapshot, [[PodGroup(*component) for component in components] for components in workloads]
    )

    for components in workloads:
        naive_sets(nodes, components, 1)
    assert same_room(nodes, after)


@settings(max_examples=60, deadline=None)
@given(node_lists(1, 3), st.lists(st.tuples(plain_shapes, st.integers(0, 2)), min_size=1, max_size=2))
def test_never_above_the_best_possible(rows, components):
    assume(any(replicas for _, replicas in components))
    cluster = built(rows)

    found = first_fit(cluster.snapshot, [PodGroup(*component) for component in components], bound=3).sets

    assert found <= best_sets(naive_nodes(rows), components, 3)


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(clusters(1), shapes, st.data())
def test_more_room_never_lowers_the_count(cluster, shape, data):
    richer = [
        replace(
            row,
            allocatable={
                resource: units + data.draw(st.integers(0, 3)) for resource, units in row.allocatable.items()
            },
        )
        for row in cluster.rows
    ]
    richer += data.draw(st.just([]) | st.just([NodeRow("new", {}, (), data.draw(allocatables()))]))

    assert count(built(richer, cluster.pods).snapshot, shape).total >= count(cluster.snapshot, shape).total


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(clusters(1), shapes, requests())
def test_smaller_requests_never_lower_the_count(cluster, shape, less):
    smaller = {resource: max(units - dict(less).get(resource, 0), 0) for resource, units in shape.requests}
    slimmer = replace(shape, requests=tuple(sorted((r, units) for r, units in smaller.items() if units)))

    assert count(cluster.snapshot, slimmer).total >= count(cluster.snapshot, shape).total


def test_first_fit_of_several_components_is_not_monotone():
    """Why the two properties above are claimed for `count` only: upstream's first fit is greedy."""
    components = [PodGroup(PodShape((("cpu", 2), ("memory", 1))), 1), PodGroup(PodShape((("cpu", 4),)), 1)]

    def sets(memory_of_first):
        rows = [
            NodeRow("first", allocatable={"cpu": 4, "memory": memory_of_first, "pods": 9}),
            NodeRow("second", allocatable={"cpu": 2, "memory": 1, "pods": 9}),
        ]
        return first_fit(built(rows).snapshot, components).sets

    assert sets(memory_of_first=0) == 1
    assert sets(memory_of_first=1) == 0


@settings(max_examples=100, deadline=None)
@given(clusters(), shapes)
def test_refusals_count_each_node_that_does_not_fit_once(cluster, shape):
    nodes = naive_nodes(cluster.rows, cluster.pods)
    refused = [node for node in nodes if not (admits(node, shape) and has_room(node, shape))]

    refusals = explain_nodes(cluster.snapshot, shape)

    assert sum(refusal.count for refusal in refusals) == len(refused)
    every = explain_nodes(cluster.snapshot, shape, all_causes=True)
    assert {refusal.reason for refusal in refusals} <= {refusal.reason for refusal in every}
    assert all(refusal.count <= len(refused) for refusal in every if refusal.count)


def test_a_filling_keeps_going_where_it_stopped():
    snapshot = built([NodeRow("n0", allocatable={"cpu": 10, "pods": 9})]).snapshot
    filling = NodeFilling(snapshot)
    one = [PodGroup(PodShape((("cpu", 3),)), 1)]

    assert [filling.place_sets(one, bound=2), filling.place_sets(one, bound=2)] == [2, 1]
    assert free_amounts(filling.snapshot())["n0"] == {"cpu": 1, "pods": 6}
