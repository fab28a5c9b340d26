import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.karmada.member_cluster import NodeGrade
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.counting.first_fit import first_fit
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool.scheduler.estimates import cluster_summary
from karpool.scheduler.estimates.graded_nodes import PODS_PER_NODE, STEPS_MAX, GradedNodes
from karpool.wire.requests import AssumedWorkload
from tests.packing.deducting import deduct
from tests.scheduler.placing import cluster

REQUESTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 900)).map(
    lambda made: tuple(sorted(made.items()))
)
GRADES = st.lists(
    st.builds(
        lambda cpu, memory, nodes: NodeGrade(0, {"cpu": cpu, "memory": memory}, nodes),
        st.integers(0, 2000),
        st.integers(0, 2000),
        st.integers(0, 6),
    ),
    max_size=3,
)
SETS = st.lists(st.tuples(REQUESTS, st.integers(0, 9)), max_size=3)


def kernel(grades):
    """The same nodes one by one, for the packing kernel."""
    rows = [
        NodeRow(f"n{number:03}-{node:03}", {}, (), {**each.floor, "pods": PODS_PER_NODE})
        for number, each in enumerate(grades)
        for node in range(each.count)
    ]
    return snapshot_of(rows)


def groups(parts):
    return [Group(PodShape(requests), replicas) for requests, replicas in parts]


@given(GRADES, st.lists(SETS, max_size=3), REQUESTS)
def test_runs_of_nodes_hold_what_the_kernel_finds(grades, before, requests):
    nodes = GradedNodes(grades)
    for parts in before:
        nodes.place(parts)

    after = deduct(kernel(grades), [groups(parts) for parts in before], topology=False)
    known = {name for grade in grades for name in grade.floor}
    asked = tuple(request for request in requests if request[0] in known)
    assert nodes.count(requests) == count(after, PodShape(asked), topology=False).total


@given(GRADES.filter(bool), SETS, SETS, st.integers(0, 400))
def test_runs_of_nodes_hold_as_many_sets_as_the_kernel_finds(grades, before, parts, bound):
    nodes = GradedNodes(grades)
    nodes.place(before)

    after = deduct(kernel(grades), [groups(before)], topology=False)
    assert nodes.place_sets(parts, bound) == first_fit(after, groups(parts), bound=bound, topology=False).sets


def test_a_million_nodes_cost_as_little_as_one():
    grades = [NodeGrade(0, {"cpu": 4000}, 10**6), NodeGrade(1, {"cpu": 8000}, 10**6)]
    web = ((("cpu", 1500),), 2)
    nodes = GradedNodes(grades)

    nodes.place([((("cpu", 100),), 10**6)])

    assert nodes.place_sets([((("cpu", 4000),), 1)], 10**9) == 10**6 - 25_000 + 2 * 10**6
    assert GradedNodes(grades).count(web[0]) == 2 * 10**6 + 5 * 10**6
    assert GradedNodes(grades[1:]).place_sets([(web[0], 5)], 10**9) == 10**6


def test_sets_that_leave_gaps_are_counted_as_far_as_it_is_quick():
    nodes = GradedNodes([NodeGrade(0, {"cpu": 8000}, 10**6)])

    found = nodes.place_sets([((("cpu", 1500),), 2), ((("cpu", 2500),), 1)], 10**9)

    assert STEPS_MAX <= found < 10**6


CPU_ONLY = [{"grade": 0, "ranges": [{"name": "cpu", "min": "4"}]}]


def summary(models=None, modelings=None, **allocatable):
    reported = {"allocatable": allocatable, "allocatableModelings": modelings}
    return cluster("m1", summary=reported, models=models).summary


def test_devices_that_no_model_mentions_are_counted_in_sums():
    """Upstream says 0 as soon as models are reported."""
    known = summary(CPU_ONLY, [{"grade": 0, "count": 5}], cpu="20", pods="500", **{"nvidia.com/gpu": "3"})

    assert cluster_summary.replicas(known, requirements({"cpu": "1", "nvidia.com/gpu": "1"})) == 3
    assert cluster_summary.replicas(known, requirements({"cpu": "3", "nvidia.com/gpu": "1"})) == 3
    assert cluster_summary.replicas(known, requirements({"cpu": "5", "nvidia.com/gpu": "1"})) == 0
    pair = [Component("a", 2, requirements({"cpu": "1", "nvidia.com/gpu": "1"}))]
    assert cluster_summary.sets(known, pair) == 1


def test_models_may_be_switched_off():
    known = summary(CPU_ONLY, [{"grade": 0, "count": 1}], cpu="40", pods="500")

    assert cluster_summary.replicas(known, requirements({"cpu": "1"})) == 4
    assert cluster_summary.replicas(known, requirements({"cpu": "1"}), models=False) == 40


def test_modelings_without_models_are_ignored():
    known = summary(None, [{"grade": 0, "count": 1}], cpu="40", pods="500")

    assert cluster_summary.replicas(known, requirements({"cpu": "1"})) == 40


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        pytest.param(None, 0, id="no summary"),
        pytest.param({"allocatable": {"pods": "9"}}, 0, id="nothing of what is asked for"),
        pytest.param({"allocatable": {"pods": "9", "cpu": "many"}}, 0, id="a summary that cannot be read"),
        pytest.param({"allocatable": {"pods": "9", "cpu": "1E"}}, 9, id="more than any number"),
        pytest.param({"allocatable": {"pods": "-9", "cpu": "9"}}, 0, id="less than nothing"),
    ],
)
def test_odd_summaries(reported, expected):
    known = cluster("m1", summary=reported).summary

    assert cluster_summary.replicas(known, requirements({"cpu": "1"})) == expected


MODELS = st.sampled_from([None, CPU_ONLY])
# All of one size: a promise that changes where another goes may open a gap, as upstream.
WORKLOADS = st.tuples(st.sampled_from(["250m", "1", "3"]), st.lists(st.integers(0, 5), max_size=5)).map(
    lambda made: [
        AssumedWorkload("", (Component("c", count, requirements({"cpu": made[0]})),)) for count in made[1]
    ]
)


@given(MODELS, st.integers(0, 6), WORKLOADS, st.sampled_from(["500m", "1", "2"]))
def test_promises_only_take_room_away(models, nodes, assumed, cpu):
    known = summary(models, [{"grade": 0, "count": nodes}], cpu=str(4 * nodes), pods=str(110 * nodes))
    asked = requirements({"cpu": cpu})
    answers = [cluster_summary.replicas(known, asked, assumed[:count]) for count in range(len(assumed) + 1)]
    in_sets = [
        cluster_summary.sets(known, [Component("c", 1, asked)], assumed[:count])
        for count in range(len(assumed) + 1)
    ]

    assert answers == sorted(answers, reverse=True)
    assert all(some <= most for some, most in zip(in_sets, answers, strict=True))
