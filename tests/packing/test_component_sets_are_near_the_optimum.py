"""Sets on new nodes against an exact search: never more, seldom less, and never less for one shape."""

import random

import pytest

from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.first_fit import PodGroup
from karpool.packing.new_nodes.component_sets import complete_sets
from karpool.packing.new_nodes.offerings import Offerings
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from tests.packing.exact_sets import most_sets
from tests.packing.pool_cases import catalogue, instance_type

FIRST_SEED, WORLDS, NODES_MAX, PODS_MAX = 71_500, 300, 3, 12  # seeds 71,500 to 71,799


def world(seed, components):
    chance = random.Random(seed)
    types = tuple({(chance.randint(2, 8), chance.randint(4, 16)) for _ in range(chance.randint(1, 3))})
    pools = [chance.randint(4, 20) for _ in range(chance.randint(1, 2))]
    shapes = [(chance.randint(1, 4), chance.randint(1, 6)) for _ in range(components)]
    return pools, types, [(shape, chance.randint(1, 3)) for shape in dict.fromkeys(shapes)]


def counted(pools, types, components):
    new = NewNodeCapacity(
        [CompiledPool(f"p{10 - n}", limits={"cpu": cpu * 1000}) for n, cpu in enumerate(pools)],
        Offerings(
            catalogue(*(instance_type(f"t{n}", cpu, gib, pods=99) for n, (cpu, gib) in enumerate(types)))
        ),
    )
    groups = [
        PodGroup(PodShape(requests=(("cpu", cpu * 1000), ("memory", gib << 30))), replicas)
        for (cpu, gib), replicas in components
    ]
    return complete_sets(groups, new.plan({}, nodes_max=NODES_MAX))


def compared(components):
    ours = best = exact = 0
    for seed in range(FIRST_SEED, FIRST_SEED + WORLDS):
        case = world(seed, components)
        at_most = PODS_MAX // sum(replicas for _, replicas in case[2])
        sets, optimum = min(counted(*case), at_most), most_sets(*case, NODES_MAX, at_most)
        assert sets <= optimum, case
        ours, best, exact = ours + sets, best + optimum, exact + (sets == optimum)
    return ours, best, exact


@pytest.mark.long
def test_of_several_shapes_at_least_95_in_100_sets_are_counted():
    for components in (2, 3):
        ours, best, exact = compared(components)
        assert best > WORLDS / 3  # there is something to count
        assert ours >= 0.95 * best
        assert exact >= 0.95 * WORLDS


def test_of_one_shape_all_are_counted():
    ours, best, exact = compared(1)

    assert best > WORLDS / 2
    assert (ours, exact) == (best, WORLDS)
