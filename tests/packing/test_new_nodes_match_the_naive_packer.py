import pytest
from hypothesis import given, settings

from tests.packing.pool_cases import pack_cases, roomy_cases


def assert_same(case):
    packing = case.pack()

    expected = case.naive().run()
    planned = [
        (
            node.pool,
            list(node.pods),
            [(o.instance_type, o.zone, o.capacity_type, o.price_per_hour) for o in node.options],
        )
        for node in packing.nodes
    ]
    assert dict(packing.placed) == expected.placed
    assert planned == expected.nodes
    assert sorted(each.pod for each in packing.left) == expected.left
    assert all(each.reasons for each in packing.left)


@pytest.mark.long
@given(pack_cases())
@settings(max_examples=110, deadline=None)
def test_every_kind_of_pool_and_pod_gives_the_same_packing(case):
    assert_same(case)


@pytest.mark.long
@given(roomy_cases())
@settings(max_examples=110, deadline=None)
def test_topology_on_new_nodes_gives_the_same_packing(case):
    assert_same(case)
