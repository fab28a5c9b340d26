"""The ceiling of what pools could launch is never below what pods really get, in any resource."""

import pytest
from hypothesis import given, settings

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.karpenter.objects import CompiledPool
from karpool.packing.new_nodes.offerings import Offerings
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from tests.packing.pool_cases import catalogue, instance_type
from tests.packing.test_new_replicas_in_closed_form import NODES_MAX, cases, packed


def ceiling(pools, types, usage=(), unavailable=(), **options):
    new = NewNodeCapacity(pools, Offerings(Catalogue("test", "test", types)), unavailable=unavailable)
    return new.ceiling(dict(usage), nodes_max=NODES_MAX, **options)


@pytest.mark.long
@settings(max_examples=250)
@given(cases())
def test_no_pods_get_more_than_the_ceiling(case):
    shape, pools, types, _, usage, out = case
    most = ceiling(pools, types, usage, out)

    placed, _ = packed(case, 60)

    for name, units in (*shape.requests, ("pods", 1)):
        assert placed * units <= most.get(name, 0) or not units


SMALL, LARGE = instance_type("small", 2, 4, pods=10), instance_type("large", 8, 64, pods=50)


@pytest.mark.parametrize(
    ("limits", "cores", "gib", "pods"),
    [
        ({}, 48, 6 * 64, 300),  # six of the largest
        ({"nodes": 2}, 16, 128, 100),
        ({"cpu": 10_000}, 10, 80, 62),  # the most memory and pods that a core brings
        ({"cpu": 7_000}, 7, 14, 35),  # the large one does not fit any more
        ({"cpu": 1_000}, 0, 0, 0),
        ({"example.com/gpu": 0}, 48, 6 * 64, 300),  # charges neither of them
    ],
)
def test_limits_and_nodes_bound_every_resource(limits, cores, gib, pods):
    most = ceiling([CompiledPool("p", limits=limits)], catalogue(SMALL, LARGE).types.values())

    assert most.get("cpu", 0) == cores * 1000
    assert most.get("memory", 0) == gib << 30
    assert most.get("pods", 0) == pods


def test_what_is_used_and_who_is_skipped_adds_nothing():
    pools = [CompiledPool("p", limits={"cpu": 10_000}), CompiledPool("q", limits={"cpu": 4_000})]
    types = [SMALL]

    assert ceiling(pools, types)["cpu"] == 14_000
    assert ceiling(pools, types, {"p": {"cpu": 9_000}})["cpu"] == 4_000
    assert ceiling(pools, types, skip={"q"})["cpu"] == 10_000
