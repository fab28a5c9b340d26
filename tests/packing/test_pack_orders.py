"""Pods packed in several orders: equal pods at once as one by one, and never dearer than in one order."""

from unittest.mock import patch

import pytest
from bench.new_nodes import _selector, diverse_pods, instance_types
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape
from karpool.packing.new_nodes import pack
from karpool.packing.new_nodes.offerings import Offerings
from karpool.packing.new_nodes.pack import PackOptions, pack_new_nodes
from karpool.packing.new_nodes.pack_order import CHEAPEST, KARPENTER, PackOrder
from karpool.packing.new_nodes.pack_result import PackResult, PendingPod
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of

GIB = 1 << 30
OFFERINGS = Offerings(Catalogue("test", "test", instance_types(16)))
POOL = CompiledPool("default", limits={"cpu": 60_000})
SMALL = {"cpu": 2000, "memory": 4 * GIB, "pods": 9}
ROOMS = snapshot_of(NodeRow(f"n{number}", {}, (), SMALL) for number in range(2))


def pods_of(seed: int, count: int) -> list[PendingPod]:
    """Plain ones of few sizes among those that others count."""
    diverse = diverse_pods(count, seed)
    return [
        PendingPod(pod.name, PodShape(pod.shape.requests, labels=(("plain", "yes"),)), uid=pod.uid)
        if number % 3
        else pod
        for number, pod in enumerate(diverse)
    ]


def packed(pods: list[PendingPod], *orders: PackOrder, existing: bool = True) -> PackResult:
    options = PackOptions(orders=orders, existing=existing)
    return pack_new_nodes(ROOMS, pods, [POOL], OFFERINGS, options=options)


def price_per_hour(result: PackResult) -> float:
    return sum(node.chosen.price_per_hour or 0.0 for node in result.nodes)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.booleans(), st.sampled_from(CHEAPEST))
def test_equal_pods_go_where_each_by_itself_would(
    seed: int, count: int, existing: bool, order: PackOrder
) -> None:
    pods = pods_of(seed, count)
    together = packed(pods, order, existing=existing)
    with patch.object(pack, "kind_of", lambda asks: None):
        alone = packed(pods, order, existing=existing)
    assert together == alone
    assert [node.requests for node in together.nodes] == [node.requests for node in alone.nodes]


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60))
def test_the_cheapest_of_several_orders_is_kept(seed: int, count: int) -> None:
    pods = pods_of(seed, count)
    single = [packed(pods, order) for order in CHEAPEST]
    costs = [(len(result.left), round(price_per_hour(result), 6)) for result in single]
    best = packed(pods, *CHEAPEST)
    assert (len(best.left), round(price_per_hour(best), 6)) == min(costs)
    assert best == single[costs.index(min(costs))]


def test_another_order_than_karpenters_is_cheaper() -> None:
    """Two pods must stand apart; the one with much memory gets the node that is large anyhow."""
    apart = AffinityTerm(_selector("app", "apart"), HOSTNAME, frozenset(("default",)))
    alone = {"namespace": "default", "labels": (("app", "apart"),), "anti_affinity": (apart,)}
    sizes = ((4000, 1, {}), (1000, 1, alone), (500, 12, alone), (1000, 2, {}))
    pods = [
        PendingPod(f"p{number}", PodShape((("cpu", cpu), ("memory", gib * GIB)), **constraints))
        for number, (cpu, gib, constraints) in enumerate(sizes)
    ]
    one, several = (packed(pods, *orders, existing=False) for orders in ((KARPENTER,), CHEAPEST))
    assert price_per_hour(one) == pytest.approx(0.2352)
    assert price_per_hour(several) == pytest.approx(0.168)
