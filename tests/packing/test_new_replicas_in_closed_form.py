"""The closed form for equal pods on new nodes promises no more than the packer places, and is monotone."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT, CompiledPool
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.taints import NO_SCHEDULE, Taint
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.new_nodes.pack import PackOptions, pack_new_nodes
from karpool.packing.new_nodes.pack_result import PendingPod
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from karpool.packing.pool_reasons import show_pool
from karpool.packing.tables.room import snapshot_of
from tests.packing.pool_cases import (
    catalogue,
    daemon_shapes,
    instance_type,
    instance_types,
    one_of,
    pod_shapes,
    pools,
    stock_outs,
    up_to,
)

NODES_MAX = 6
GPU = "example.com/gpu"


def plain(shape):
    return replace(
        shape,
        spreads=(),
        affinity=(),
        anti_affinity=(),
        preferred_affinity=(),
        preferred_anti_affinity=(),
    )


def packed(case, pods, pools_=None):
    """How many of `pods` pods the packer places, each pool limited to NODES_MAX more nodes."""
    shape, chosen, types, daemons, usage, out = case
    capped = [capped_pool(pool, usage) for pool in pools_ or chosen]
    found = pack_new_nodes(
        snapshot_of(()),
        [PendingPod(f"p{number}", shape, uid=f"{number:04}") for number in range(pods)],
        capped,
        Catalogue("test", "test", types),
        daemons=daemons,
        usage=usage,
        unavailable=out,
        options=PackOptions(existing=False),
    )
    return pods - len(found.left), found


def capped_pool(pool, usage):
    most = usage.get(pool.name, {}).get("nodes", 0) + NODES_MAX
    return replace(pool, limits={**pool.limits, "nodes": min(pool.limits.get("nodes", most), most)})


@st.composite
def cases(draw):
    chosen = draw(pools())
    usage = {
        pool.name: {"cpu": draw(st.sampled_from([0, 0, 2000, 30000])), "nodes": draw(st.integers(0, 2))}
        for pool in chosen
    }
    shape = plain(draw(pod_shapes()))
    return (
        shape,
        chosen,
        draw(instance_types()),
        draw(up_to(2, daemon_shapes)),
        usage,
        draw(up_to(2, stock_outs)),
    )


def counted(case, chosen=None, wanted=None):
    shape, pools_, types, daemons, usage, out = case
    new = NewNodeCapacity(
        chosen or pools_, Offerings(Catalogue("test", "test", types)), daemons=daemons, unavailable=out
    )
    return new.potential(shape, usage, nodes_max=NODES_MAX, wanted=wanted)


@pytest.mark.long
@settings(max_examples=250)
@given(cases())
def test_what_is_counted_can_be_placed(case):
    total = sum(each.replicas for each in counted(case))

    placed, _ = packed(case, total)

    assert placed == total


@pytest.mark.long
@settings(max_examples=150)
@given(cases())
def test_without_cut_limits_it_is_exactly_what_the_packer_places(case):
    """Where no type is larger than what is left there is nothing to be careful about."""
    shape, chosen, types, daemons, usage, out = case
    free = [replace(pool, limits={}) for pool in chosen]
    case = (shape, free, types, daemons, usage, out)
    total = sum(each.replicas for each in counted(case))

    placed, found = packed(case, total + 1, free)

    assert placed == total
    assert len(found.nodes) == sum(each.nodes for each in counted(case))


@pytest.mark.long
@settings(max_examples=200)
@given(cases(), st.data())
def test_more_limit_never_means_fewer_replicas(case, data):
    _, chosen, *_ = case
    larger = [
        replace(
            pool,
            limits={
                name: units + data.draw(st.sampled_from([0, 1000, 3000, 8000]))
                for name, units in pool.limits.items()
            },
        )
        for pool in chosen
    ]

    before, after = counted(case), counted(case, larger)

    assert all(one.replicas <= two.replicas for one, two in zip(before, after, strict=True))


@pytest.mark.long
@settings(max_examples=150)
@given(cases(), st.data())
def test_limits_of_devices_that_some_machines_lack_keep_both_promises(case, data):
    shape, chosen, types, daemons, usage, out = case
    devices = st.sampled_from([0, 1, 2, 4])
    with_gpus = [
        replace(instance, capacity={**instance.capacity, GPU: number}) if number else instance
        for instance in types
        for number in [data.draw(devices)]
    ]
    limited = [replace(pool, limits={**pool.limits, GPU: data.draw(devices)}) for pool in chosen]
    larger = [replace(pool, limits={**pool.limits, GPU: pool.limits[GPU] + 2}) for pool in limited]
    case = (shape, limited, with_gpus, daemons, usage, out)

    before, after = counted(case), counted(case, larger)
    total = sum(part.replicas for part in before)

    assert packed(case, total)[0] == total
    assert all(one.replicas <= two.replicas for one, two in zip(before, after, strict=True))


@pytest.mark.long
@settings(max_examples=100)
@given(cases(), st.integers(1, 8))
def test_no_more_is_launched_than_wanted_and_it_costs_what_the_packer_pays(case, wanted):
    total = sum(each.replicas for each in counted(case))
    found = counted(case, wanted=wanted)
    _, whole = packed(case, min(total, wanted))

    assert sum(each.replicas for each in found) == min(total, wanted)
    if len(case[1]) == 1 and case[0].node_terms is None and not case[0].preferred_nodes:
        assert sum(each.nodes for each in found) == len(whole.nodes)
        prices = [node.chosen.price_per_hour for node in whole.nodes]
        if prices and None not in prices:
            assert found[0].price_per_hour == pytest.approx(sum(prices))


def small(*types, limits=None, **pool):
    return NewNodeCapacity([CompiledPool("one", limits=limits or {}, **pool)], Offerings(catalogue(*types)))


THREE = PodShape(requests=(("cpu", 3000),))


def test_fragments_of_machines_are_not_counted():
    """64 CPU in machines of 4 hold 16 pods of 3 CPU, not 21."""
    new = small(instance_type("four", 4, 16), limits={"cpu": 64000})

    (found,) = new.potential(THREE, {}, nodes_max=1000)

    assert (found.replicas, found.nodes, found.instance_types) == (16, 16, ("four",))


def test_a_device_and_more_cpu_than_its_machine_has_is_never_counted():
    new = small(instance_type("gpu", 4, 16, **{"nvidia.com/gpu": 1}), limits={"nvidia.com/gpu": 8})
    shape = PodShape(requests=(("cpu", 10000), ("nvidia.com/gpu", 1)))

    (found,) = new.potential(shape, {}, nodes_max=1000)

    assert found.replicas == 0
    assert "no instance type has 10 cpu" in str(found.refusals[0])


def test_less_left_than_the_smallest_machine_is_nothing_and_says_so():
    new = small(instance_type("four", 4, 16), instance_type("eight", 8, 32), limits={"cpu": 16000})

    (found,) = new.potential(THREE, {"one": {"cpu": 13000}}, nodes_max=1000)

    assert found.replicas == 0
    assert show_pool(found.refusals[0]) == (
        "pool one: limit cpu reached: 3 of 16 left, smallest type needs 4"
    )


def test_a_limit_on_nodes_is_a_limit():
    new = small(instance_type("four", 4, 16), limits={"nodes": 3})

    assert new.potential(THREE, {"one": {"nodes": 1}}, nodes_max=1000)[0].replicas == 2
    assert "limit nodes reached" in str(
        new.potential(THREE, {"one": {"nodes": 3}}, nodes_max=9)[0].refusals[0]
    )


def test_without_limits_the_cap_is_the_limit():
    (found,) = small(instance_type("four", 4, 16)).potential(THREE, {}, nodes_max=7)

    assert (found.replicas, found.nodes) == (7, 7)


def test_a_pool_without_limits_names_the_bound_of_the_estimate():
    (capacity,) = small(instance_type("four", 4, 16)).plan({}, nodes_max=7).capacity(THREE)

    assert capacity.replicas == 7
    assert "the estimate counts at most 7 new nodes" in str(capacity.refusals[0])


def test_a_large_machine_that_holds_little_never_makes_more_limit_worth_less():
    """Karpenter plans three small nodes within 6 CPU, and one odd one within 7."""
    odd = instance_type("odd", 7, 8)
    types = (instance_type("small", 2, 4, pods=1), replace(odd, allocatable={**odd.allocatable, "pods": 2}))
    shape = PodShape(requests=(("cpu", 1000),))
    answers = [
        small(*types, limits={"cpu": cpu * 1000}).potential(shape, {}, nodes_max=99)[0].replicas
        for cpu in range(1, 20)
    ]

    assert answers == sorted(answers)
    assert answers[5] == 2 and answers[6] == 2


GPUS_AND_NONE = (
    instance_type("large-gpu", 48, 192, pods=100, **{GPU: 4}),
    instance_type("gpu", 4, 16, **{GPU: 1}),
    instance_type("small", 2, 8),
    instance_type("plain", 8, 32),
)


def test_a_limit_of_gpus_does_not_bound_pods_that_machines_without_gpus_hold():
    """Two large nodes use up the GPUs; the other 98 are plain ones, and hold eight pods each at least."""
    shape = PodShape(requests=(("cpu", 1000),))

    (part,) = small(*GPUS_AND_NONE, limits={GPU: 8}).potential(shape, {}, nodes_max=100)

    assert part.replicas >= 100 * 8


def test_a_limit_of_gpus_beside_one_of_cpu_leaves_what_the_cpu_is_certain_to_hold():
    shape = PodShape(requests=(("cpu", 1000),))

    (part,) = small(*GPUS_AND_NONE, limits={GPU: 8, "cpu": 1_000_000}).potential(shape, {}, nodes_max=1000)

    assert 990 <= part.replicas <= 1000


def test_daemons_taints_stock_and_zones_count():
    new = NewNodeCapacity(
        [
            CompiledPool("tainted", taints=(Taint(key="gpu", effect=NO_SCHEDULE),), weight=10),
            CompiledPool("spot", requirements={CAPACITY_TYPE: one_of(SPOT)}, limits={"cpu": 8000}),
            CompiledPool("plain", requirements={CAPACITY_TYPE: one_of(ON_DEMAND)}, limits={"cpu": 8000}),
        ],
        Offerings(catalogue(instance_type("four", 4, 16, kinds=(ON_DEMAND, SPOT)))),
        daemons=[PodShape(requests=(("cpu", 500),))],
        unavailable=[StockOut("four", None, SPOT)],
    )
    shape = PodShape(requests=(("cpu", 1000),), node_selector=((ZONE, "a"),))

    found = {each.pool: each for each in new.potential(shape, {}, nodes_max=1000)}

    assert {name: each.replicas for name, each in found.items()} == {"tainted": 0, "spot": 0, "plain": 6}
    assert "taint gpu:NoSchedule untolerated" in str(found["tainted"].refusals[0])
    assert "out of stock" in str(found["spot"].refusals[0])
    assert found["plain"].runs[0].choice.zone == "a"


def test_many_shapes_do_not_pile_up():
    new = small(instance_type("four", 4, 16))
    for number in range(2500):
        shape = PodShape(requests=(("cpu", 1000),), node_selector=(("team", f"t{number}"),))
        assert new.potential(shape, {}, nodes_max=1)[0].replicas == 0

    assert len(new._shapes) <= 2048
