from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from karpool.gpu.allocation.open_nodes import OpenNodes
from karpool.gpu.allocation.preemption import find_victims, free_without
from karpool.gpu.scale_up.demand import ScaleUpCandidate, WaitingWorker
from karpool.gpu.scale_up.feasibility import feasible
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device import DevicePartition
from karpool.model.devices.device_reasons import DeviceReason, stable_code
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.partitions import PartitionCatalogue, PartitionTemplate
from karpool.model.devices.quota import GpuQuota, NamespaceQuota, WorkloadQuota
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool.provisioning.node_request import NodeCandidate
from tests.gpu.devices import GIB, ask, gpu, node, opened

MIG = PartitionCatalogue(
    {
        "A100": {
            "19": PartitionTemplate("19", "1g.10gb", 10, 14.28, 7, (0, 1, 2, 3, 4, 5, 6), 1),
            "5": PartitionTemplate("5", "4g.40gb", 40, 57.14, 1, (0,), 4),
        }
    },
    {"A100": 7},
)

BRINGS = NodeYield(1, 100_000, 16 * GIB, cpu_milli=4000, memory_bytes=GIB)


def dropped(allocator, request, nodes=None):
    """What each filter did, in words."""
    rows = np.arange(len(list(allocator.table)))
    steps = allocator.filter_devices(request, rows, nodes, trace=True).dropped
    return ", ".join(str(step) for step in steps if step.after < step.before)


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        pytest.param(ask(pool=""), DeviceReason.POOL_NAME_EMPTY, "names no GPU pool", id="no pool"),
        pytest.param(ask(pool="none"), DeviceReason.POOL_EMPTY, "none has no GPU", id="empty pool"),
        pytest.param(
            ask(tflops=500), DeviceReason.NO_GPU_AFTER_FILTER, "resources dropped 3 of 3", id="too big"
        ),
        pytest.param(ask(model="H100"), DeviceReason.NO_GPU_AFTER_FILTER, "model dropped", id="model"),
        pytest.param(ask(count=3), DeviceReason.SAME_NODE_UNSATISFIED, "3 GPUs", id="too many on one node"),
        pytest.param(ask(count=0), DeviceReason.GPU_COUNT_OUT_OF_RANGE, "1 to 128", id="none at all"),
        pytest.param(ask(indices=(7,)), DeviceReason.NO_GPU_AFTER_FILTER, "index dropped", id="index"),
    ],
)
def test_a_refusal_has_a_code_and_says_what_was_dropped(request_, code, words):
    allocator = opened([*node("node-0", 2), *node("node-1", 1)])
    for name in ("node-0", "node-1"):
        allocator.put_node(name, {"zone": "a"}, cpu_milli=4000, memory_bytes=GIB)

    refused = allocator.try_allocate(request_)

    assert isinstance(refused, Infeasible)
    assert refused.reason is code
    assert words in dropped(allocator, request_) or words in refused.detail


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(PodShape(requests=(("cpu", 9999),)), id="no CPU"),
        pytest.param(PodShape(requests=(("ephemeral-storage", 1),)), id="no disk"),
        pytest.param(PodShape(node_selector=(("zone", "b"),)), id="affinity"),
    ],
)
def test_a_node_that_does_not_take_the_pod_gives_no_device(shape):
    allocator = opened([*node("node-0", 2), *node("node-1", 1)])
    offers = {"cpu": 4000, "pods": 10}
    room = snapshot_of([NodeRow(name, {"zone": "a"}, allocatable=offers) for name in ("node-0", "node-1")])

    nodes = OpenNodes(allocator.table, room, {}).choice(shape)
    refused = allocator.try_allocate(ask(), nodes=nodes)

    assert isinstance(refused, Infeasible)
    assert refused.reason is DeviceReason.NO_GPU_AFTER_FILTER
    assert "node dropped 3 of 3" in dropped(allocator, ask(), nodes)


def test_quota_refusals_name_the_resource_and_whether_waiting_helps():
    allocator = opened(node("node-0", 2))
    allocator.put_quota(
        GpuQuota("n", WorkloadQuota(max_gpu_count=1), NamespaceQuota(DeviceAmount(15_000, GIB)))
    )

    too_many = allocator.try_allocate(ask(namespace="n", count=2))
    too_much = allocator.try_allocate(ask(namespace="n", tflops=20))

    assert (stable_code(too_many), too_many.resolvable) == ("quota_exceeded:single.max.gpuCount.limit", False)
    assert (stable_code(too_much), too_much.resolvable) == ("quota_exceeded:total.max.tflops.request", True)


def test_a_full_node_of_workers_takes_no_more():
    allocator = opened(node("node-0", 4), workers_per_node=2)
    for number in range(2):
        allocator.try_allocate(ask(f"u{number}"))

    refused = allocator.try_allocate(ask("u2"))

    assert refused.reason is DeviceReason.NO_GPU_AFTER_FILTER
    assert "worker cap dropped 4 of 4" in dropped(allocator, ask("u2"))


def test_devices_can_be_named_and_nodes_left_out():
    allocator = opened([*node("node-0", 2), *node("node-1", 1)])

    assert allocator.find(ask(), only=["node-1-0"]) == ("node-1-0",)
    assert allocator.find(ask(), avoid_nodes=["node-0"]) == ("node-1-0",)
    assert allocator.find(ask(), only=["gone"]).reason is DeviceReason.POOL_EMPTY


def test_a_hold_does_not_ask_who_uses_the_device_at_the_moment():
    allocator = opened([gpu("g", used_by="nvidia-device-plugin")])

    assert isinstance(allocator.try_allocate(ask("a")), Infeasible)
    assert allocator.hold(ask("b"), ["g"], 0.0, 60.0).devices == ("g",)
    assert isinstance(allocator.hold(ask("c", tflops=95), ["g"], 0.0), Infeasible)


def test_absolute_compute_is_not_taken_from_a_device_of_unknown_speed():
    allocator = opened([gpu("g", compute_known=False)])

    assert allocator.try_allocate(ask()).reason is DeviceReason.NO_GPU_AFTER_FILTER
    assert allocator.find(replace(ask(), request=DeviceShare(vram_bytes=GIB, percent_milli=50_000))) == ("g",)


@pytest.mark.parametrize(
    ("request_", "brings", "code"),
    [
        pytest.param(ask(tflops=80), BRINGS, None, id="fits"),
        pytest.param(ask(tflops=80, count=2), replace(BRINGS, devices=2), None, id="fits twice"),
        pytest.param(
            ask(tflops=80, count=3),
            replace(BRINGS, devices=2),
            DeviceReason.SAME_NODE_UNSATISFIED,
            id="node too small",
        ),
        pytest.param(ask(vram=17), BRINGS, DeviceReason.NO_GPU_AFTER_FILTER, id="device too small"),
        pytest.param(
            ask(tflops=101, vram=1, isolation="shared"),
            BRINGS,
            DeviceReason.NO_GPU_AFTER_FILTER,
            id="a whole one must have what is asked for",
        ),
        pytest.param(ask(pool=""), BRINGS, None, id="pool does not matter"),
        pytest.param(ask(indices=(1,)), BRINGS, DeviceReason.NO_GPU_AFTER_FILTER, id="no such index"),
        pytest.param(
            ask(), replace(BRINGS, tflops_milli=0), DeviceReason.NO_GPU_AFTER_FILTER, id="unknown speed"
        ),
        pytest.param(ask(), replace(BRINGS, devices=0), DeviceReason.NO_GPU_AFTER_FILTER, id="no device"),
        pytest.param(
            replace(ask(), cpu_milli=4001), BRINGS, DeviceReason.NO_GPU_AFTER_FILTER, id="CPU too small"
        ),
    ],
)
def test_whether_a_new_node_would_help(request_, brings, code):
    rung = ScaleUpCandidate(NodeCandidate(), brings)

    answer = feasible(WaitingWorker(request_, 0.0), (rung,))

    assert answer == (rung,) if code is None else answer.reason is code


def test_new_nodes_have_no_policy_of_their_own():
    rung = ScaleUpCandidate(NodeCandidate(), BRINGS)

    refused = feasible(WaitingWorker(ask(), 0.0), (rung,), "Dynamic")

    assert refused.reason is DeviceReason.NO_GPU_AFTER_FILTER
    assert "Dynamic is in force" in refused.detail


def test_slices_are_cut_until_the_device_has_no_slot_left():
    big = gpu("g", tflops=312, vram=80)
    allocator = opened([big], catalogue=MIG)
    sliced = replace(ask(tflops=20, vram=5), isolation="partitioned")
    largest = allocator.try_allocate(replace(sliced, uid="big", template="MIG-4g.40gb"))
    allocator.commit("big")
    small = [allocator.try_allocate(replace(sliced, uid=f"s{number}")) for number in range(4)]

    assert largest.partitions[0].template == "5"
    assert [tuple(cut.start for cut in each.partitions) for each in small[:3]] == [(4,), (5,), (6,)]
    assert isinstance(small[3], Infeasible)
    allocator.release("big")
    assert allocator.try_allocate(replace(sliced, uid="again")).partitions[0].start == 0


def test_a_device_without_a_free_run_of_slots_is_passed_over():
    in_the_way = {"small": DevicePartition("19", start=0)}
    devices = [gpu("g-0", tflops=312, vram=80, partitions=in_the_way), gpu("g-1", tflops=312, vram=80)]
    allocator = opened(devices, catalogue=MIG)
    sliced = replace(ask(tflops=20, vram=5), isolation="partitioned")

    found = allocator.try_allocate(replace(sliced, uid="big", template="5"))
    refused = allocator.try_allocate(replace(sliced, uid="second", template="5"))

    assert found.devices == ("g-1",)
    assert refused.reason is DeviceReason.NO_GPU_AFTER_FILTER
    assert "partition slot dropped" in dropped(allocator, replace(sliced, uid="third", template="5"))


def test_a_slice_that_others_made_counts():
    big = gpu(
        "g", tflops=312, vram=80, partitions={f"p{number}": DevicePartition("19") for number in range(7)}
    )
    allocator = opened([big], catalogue=MIG)

    refused = allocator.try_allocate(replace(ask(), isolation="partitioned"))

    assert refused.reason is DeviceReason.NO_GPU_AFTER_FILTER


def test_what_victims_would_give_back():
    allocator = opened([gpu("g")])
    allocator.restore(ask("a", tflops=40, vram=6), ["g"])
    allocator.restore(ask("b", tflops=50, vram=8), ["g"])
    victims = list(allocator.ledger.committed.values())
    full = structs.replace(gpu("g"), available=allocator.free("g"))

    enough = free_without([full], victims, ask(tflops=90, vram=14))
    one_only = free_without([full], victims[:1], ask(tflops=90, vram=14))

    assert enough.devices == ("g",)
    assert one_only.devices == ()
    assert free_without([], [], ask()).reason is DeviceReason.NO_AFFECTED_NODES


def test_the_fewest_less_important_workers_are_named():
    allocator = opened([gpu("g-0"), gpu("g-1", "node-1")])
    for number in range(4):
        allocator.restore(
            replace(ask(f"small-{number}", tflops=25), name=f"small-{number}"), ["g-0"], "node-0"
        )
    allocator.restore(replace(ask("big", tflops=60), name="big"), ["g-1"], "node-1")
    allocator.restore(replace(ask("vital", tflops=40), name="vital", priority=100), ["g-1"], "node-1")

    important = replace(ask("new", tflops=50), priority=10)
    victims = find_victims(allocator, important)

    assert (victims.node, victims.workers) == ("node-1", ("big",))
    assert find_victims(allocator, replace(important, priority=0)) is None
    assert find_victims(allocator, replace(important, request=DeviceShare(70_000, GIB))).node == "node-0"


def test_cards_of_one_name_are_cut_as_their_memory_says():
    devices = [gpu("small", tflops=312, vram=40, node="n-0"), gpu("large", tflops=312, vram=80, node="n-1")]
    for order in (devices, devices[::-1]):
        allocator = opened(order)
        cut = replace(ask("a", tflops=0, vram=0), isolation="partitioned")
        assert allocator.try_allocate(replace(cut, template="1g.5gb")).devices == ("small",)
        assert allocator.try_allocate(replace(cut, uid="b", template="2g.20gb")).devices == ("large",)
