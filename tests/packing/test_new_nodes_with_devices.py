"""New nodes for pods that ask for shares of devices: only types that have them, and as many as they hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.catalogue.files import load_shipped
from karpool.model.devices.amounts import DeviceShare
from karpool.model.devices.request import UNREADABLE_DEMAND, DeviceDemand
from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, CompiledPool
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.offerings import Offerings
from karpool.packing.new_nodes.pack import pack_new_nodes
from karpool.packing.new_nodes.pack_result import PackResult, PendingPod
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from karpool.packing.relocation.single_node import SingleNodePacker
from karpool.packing.tables.room import snapshot_of

GIB = 2**30
OFFERINGS = Offerings(load_shipped("us-east-1"))
POOL = CompiledPool(
    name="gpu",
    requirements={
        INSTANCE_TYPE: ValueSet(frozenset(("m5.large", "g5.xlarge", "g5.12xlarge"))),
        CAPACITY_TYPE: ValueSet(frozenset((ON_DEMAND,))),
    },
)


def wants(tflops: int, vram_gib: int, gpus: int = 1, **more: str) -> PodShape:
    demand = DeviceDemand(gpus, DeviceShare(tflops * 1000, vram_gib * GIB), **more)
    return PodShape(requests=(("cpu", 250),), devices=demand)


WHOLE = PodShape(requests=(("cpu", 250), ("nvidia.com/gpu", 1)))


def packed(*shapes: PodShape) -> PackResult:
    pods = [PendingPod(f"p{number:03}", shape) for number, shape in enumerate(shapes)]
    return pack_new_nodes(snapshot_of(()), pods, [POOL], OFFERINGS)


def chosen(result: PackResult) -> list[str]:
    return [node.chosen.instance_type for node in result.nodes]


def test_a_share_buys_the_type_with_the_device_though_another_is_cheaper() -> None:
    assert chosen(packed(wants(30, 6))) == ["g5.xlarge"]
    assert chosen(packed(PodShape(requests=(("cpu", 250),)))) == ["m5.large"]


def test_four_devices_of_one_node_need_the_large_type() -> None:
    assert chosen(packed(wants(30, 6, gpus=4))) == ["g5.12xlarge"]
    assert not packed(wants(30, 6, gpus=5)).nodes


def test_shares_fill_devices_and_whole_ones_stand_apart() -> None:
    halves = [wants(35, 11)] * 2
    assert len(packed(*halves).nodes) == 1
    assert chosen(packed(*halves)) == ["g5.xlarge"]
    for node in packed(*halves, WHOLE).nodes:
        if "p002" in node.pods and len(node.pods) > 1:
            assert {option.instance_type for option in node.options} == {"g5.12xlarge"}


@pytest.mark.parametrize(
    "shape",
    [
        wants(30, 6, model="H100"),
        wants(200, 1),
        wants(1, 1, pool="another"),
        PodShape(devices=UNREADABLE_DEMAND),
    ],
)
def test_what_no_type_has_buys_nothing_and_says_so(shape: PodShape) -> None:
    result = packed(shape)
    assert not result.nodes
    assert "no such device" in str(result.left[0].reasons[-1])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 20), st.integers(1, 4), st.integers(1, 30))
def test_the_closed_form_promises_no_more_than_is_placed(fifths, vram, gpus, replicas) -> None:
    shape = wants(14 * fifths, vram, gpus)
    (found,) = NewNodeCapacity([POOL], OFFERINGS).potential(shape, {}, nodes_max=100, wanted=replicas)
    result = packed(*[shape] * replicas)
    placed = sum(len(node.pods) for node in result.nodes)
    assert found.replicas <= placed
    assert placed == replicas == found.replicas, "the pool has no limits"
    single = SingleNodePacker({0: shape}, [POOL], OFFERINGS)
    for node in result.nodes:
        (fitting,) = single.fitting({0: len(node.pods)})
        names = {option.instance_type for option in fitting.options(10)}
        assert {option.instance_type for option in node.options} == names
