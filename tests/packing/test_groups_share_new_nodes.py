"""Groups of equal pods planned in runs of nodes: what the packer does pod by pod, pools and nodes alike."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.node import ARCH
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.first_fit import PodGroup
from karpool.packing.new_nodes.component_sets import complete_sets
from karpool.packing.new_nodes.offerings import Offerings
from karpool.packing.new_nodes.pack import PackOptions, pack_new_nodes
from karpool.packing.new_nodes.pack_order import placing_order
from karpool.packing.new_nodes.pack_result import PendingPod
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from karpool.packing.tables.room import snapshot_of
from tests.packing.pool_cases import (
    PackCase,
    catalogue,
    daemon_shapes,
    instance_type,
    instance_types,
    pod_shapes,
    pools,
    stock_outs,
    up_to,
)
from tests.packing.test_new_replicas_in_closed_form import NODES_MAX, capped_pool, plain


def one_way(shape):
    """Without alternatives: a pod with several is tried in all ways before the next is."""
    terms = shape.node_terms[:1] if shape.node_terms is not None else None
    return replace(plain(shape), preferred_nodes=(), node_terms=terms)


@st.composite
def worlds(draw):
    chosen = draw(pools())
    usage = {
        pool.name: {"cpu": draw(st.sampled_from([0, 0, 2000, 30000])), "nodes": draw(st.integers(0, 2))}
        for pool in chosen
    }
    shapes = [one_way(shape) for shape in draw(st.lists(pod_shapes(), min_size=1, max_size=4))]
    groups = [(shape, draw(st.integers(1, 9))) for shape in dict.fromkeys(shapes)]
    groups.sort(key=lambda group: placing_order(PendingPod("", group[0])))
    return (
        groups,
        chosen,
        draw(instance_types()),
        draw(up_to(2, daemon_shapes)),
        usage,
        draw(up_to(2, stock_outs)),
    )


def planned(world):
    _, chosen, types, daemons, usage, out = world
    new = NewNodeCapacity(
        chosen, Offerings(Catalogue("test", "test", types)), daemons=daemons, unavailable=out
    )
    return new.plan(usage, nodes_max=NODES_MAX)


def packed(world, groups):
    """How many of each group the packer places."""
    _, chosen, types, daemons, usage, out = world
    pods = [
        PendingPod(f"{group}-{number}", shape, uid=f"{group:04}-{number:04}")
        for group, (shape, replicas) in enumerate(groups)
        for number in range(replicas)
    ]
    found = pack_new_nodes(
        snapshot_of(()),
        pods,
        [capped_pool(pool, usage) for pool in chosen],
        Catalogue("test", "test", types),
        daemons=daemons,
        usage=usage,
        unavailable=out,
        options=PackOptions(existing=False),
    )
    left = [int(each.pod.split("-")[0]) for each in found.left]
    placed = [replicas - left.count(group) for group, (_, replicas) in enumerate(groups)]
    return placed, sorted(str((node.pool, len(node.pods), node.chosen)) for node in found.nodes)


@pytest.mark.long
@settings(max_examples=300)
@given(worlds())
def test_groups_land_where_the_packer_puts_their_pods(world):
    groups = world[0]
    plan = planned(world)

    placed = [plan.place(shape, replicas) for shape, replicas in groups]

    expected, nodes = packed(world, groups)
    assert placed == expected
    runs = [str((pool, run.pods, run.choice)) for pool, run in plan.runs() for _ in range(run.nodes)]
    assert sorted(runs) == nodes


def one_by_one(world, others, shape):
    """The naive twin: the others first, then pods of one shape until one finds no room."""
    _, chosen, types, daemons, usage, out = world
    pods = [
        PendingPod(f"{group}-{number}", each)
        for group, (each, replicas) in enumerate(others)
        for number in range(replicas)
    ]
    asked = PendingPod("asked", shape)
    packer = PackCase(
        [],
        [],
        [*pods, asked],
        [capped_pool(pool, usage) for pool in chosen],
        types,
        daemons,
        usage,
        out,
        PackOptions(existing=False),
    ).naive()
    packer.everyone = [variant for pod in packer.pods for variant, _, _ in packer.variants(pod.shape)]
    for pod in pods:
        packer.place(pod)
    placed = 0
    while packer.place(replace(asked, name=f"asked-{placed}")):
        placed += 1
    return placed


@pytest.mark.long
@settings(max_examples=150)
@given(worlds())
def test_what_is_left_beside_promises_is_what_packing_both_achieves(world):
    *others, (shape, _) = world[0]
    plan = planned(world)
    for each, replicas in others:
        plan.place(each, replicas)

    counted = sum(each.replicas for each in plan.capacity(shape))

    achieved = one_by_one(world, others, shape)
    assert plan.copy().place(shape, 10_000) == achieved
    assert counted <= achieved


@pytest.mark.long
@settings(max_examples=150)
@given(worlds(), st.integers(0, 12))
def test_promises_of_the_same_shape_cost_exactly_as_many_as_they_are(world, promised):
    *others, (shape, _) = world[0]
    plan = planned(world)
    for each, replicas in others:
        plan.place(each, replicas)
    before = plan.capacity(shape)

    after = plan.capacity(shape, ahead=promised)

    whole = sum(each.replicas for each in before)
    assert sum(each.replicas for each in after) == max(0, whole - promised)
    assert sum(each.nodes for each in after) <= sum(each.nodes for each in before)


@pytest.mark.long
@settings(max_examples=100)
@given(worlds(), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_every_set_that_is_counted_is_placed(world, replicas):
    shapes = [shape for shape, _ in world[0]]
    groups = [PodGroup(shape, count) for shape, count in zip(shapes, replicas, strict=False)]

    sets = complete_sets(groups, planned(world))

    wanted = [(group.shape, group.replicas * sets) for group in groups]
    assert packed(world, wanted)[0] == [count for _, count in wanted]


@pytest.mark.long
@settings(max_examples=100)
@given(worlds(), st.integers(1, 3), st.integers(1, 3))
def test_identical_shapes_in_two_components_count_as_in_one(world, first, second):
    """And then nothing is lost: the sets are the room for one shape, divided."""
    (shape, _), *_ = world[0]
    room = planned(world).place(shape, 10_000)

    sets = complete_sets([PodGroup(shape, first), PodGroup(shape, second)], planned(world))

    assert sets == complete_sets([PodGroup(shape, first + second)], planned(world))
    assert sets == room // (first + second)


def test_a_promise_of_another_size_takes_its_share_of_a_node_and_no_more():
    """One node of 16 cores is planned for a promise of 3: 13 of the next 16 fit beside it."""
    plan = NewNodeCapacity(
        [CompiledPool("one", limits={"cpu": 32_000})],
        Offerings(catalogue(instance_type("t", 16, 64, pods=99))),
    ).plan({}, nodes_max=9)
    small, large = (PodShape(requests=(("cpu", cpu),)) for cpu in (1000, 3000))

    assert [sum(each.replicas for each in plan.capacity(shape)) for shape in (small, large)] == [32, 10]
    assert plan.place(large, 1) == 1
    assert [sum(each.replicas for each in plan.capacity(shape)) for shape in (small, large)] == [29, 9]
    (capacity,) = plan.capacity(small, wanted=14)
    assert (capacity.replicas, capacity.nodes) == (14, 1)


def test_groups_that_exclude_each_other_do_not_share_a_node():
    """By architecture, and by a host port: each has the whole pool, and both together have it once."""
    types = instance_type("x", 4, 16, arch="amd64"), instance_type("y", 4, 16, arch="arm64")
    new = NewNodeCapacity([CompiledPool("one", limits={"nodes": 2})], Offerings(catalogue(*types)))
    small = (("cpu", 500),)
    amd, arm = (PodShape(requests=small, node_selector=((ARCH, arch),)) for arch in ("amd64", "arm64"))
    web = PodShape(requests=small, host_ports=frozenset({("0.0.0.0", "TCP", 80)}))
    proxy = PodShape(requests=(("cpu", 400),), host_ports=web.host_ports)

    for first, second in ((amd, arm), (web, proxy)):
        plan = new.plan({}, nodes_max=9)
        assert [plan.place(shape, 1) for shape in (PodShape(requests=small), first, second)] == [1, 1, 1]
        assert [run.nodes for _, run in plan.runs()] == [1, 1]
        assert plan.place(second, 1) == (second is arm)
