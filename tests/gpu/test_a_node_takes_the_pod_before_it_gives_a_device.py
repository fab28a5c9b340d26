"""A device is given only on a node whose kubelet takes the pod: the packing kernel says which."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from karpool.cluster.cluster_room import ClusterRoom
from karpool.gpu.controller.allocator_state import AllocatorState, GpuNodeFacts, GpuWorker, View
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.input import HoldDevices
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.model.devices.device import Device
from karpool.model.devices.request import UNREADABLE_DEMAND
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.model.taints import Taint
from karpool.packing.tables.node_table import NodeRow
from tests.gpu.devices import ask
from tests.gpu.devices import node as devices_of

OFFERS = {"cpu": 4000, "memory": 2**33, "pods": 2, "ephemeral-storage": 1000, "nvidia.com/gpu": 1}
SHAPE = PodShape(
    requests=(("cpu", 1000), ("ephemeral-storage", 600)), labels=(("app", "web"),), namespace="n"
)
APART = AffinityTerm(
    LabelMatcher((LabelRequirement("app", "In", frozenset(("web",))),)), HOSTNAME, frozenset(("n",))
)
PORT = frozenset((("0.0.0.0", "TCP", 8080),))
Change = Callable[[ClusterRoom], None]


def two_nodes(change: Change) -> ClusterRoom:
    cluster = ClusterRoom()
    for name in ("node-0", "node-1"):
        cluster.put_node(NodeRow(name, {HOSTNAME: name}, allocatable=OFFERS))
    change(cluster)
    return cluster


def looked(cluster: ClusterRoom, *workers: GpuWorker, state: AllocatorState | None = None):
    nodes = tuple(
        GpuNodeFacts(name, ready=True, devices=(device_of(name),), cpu_milli=4000, memory_bytes=2**33)
        for name in ("node-0", "node-1")
    )
    view = View(now=0.0, workers=workers, nodes=nodes, room=cluster.snapshot())
    found, _ = (state or AllocatorState(ScaleUpSettings())).refresh(view, lambda item: ())
    return {item.uid: allocation.node for item, allocation in found.served}


def device_of(node: str) -> Device:
    """As the cluster names it."""
    return structs.replace(devices_of(node, 1)[0], name=f"{node}-gpu-0")


def waiting(uid: str, shape: PodShape = SHAPE) -> GpuWorker:
    return GpuWorker(WaitingWorker(ask(uid), 0.0, shape=shape))


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        pytest.param(
            lambda cluster: [cluster.put_pod(f"n/p{number}", PodShape(), "node-0") for number in range(2)],
            SHAPE,
            id="no free pod slot",
        ),
        pytest.param(
            lambda cluster: cluster.put_pod(
                "n/p", PodShape(requests=(("ephemeral-storage", 500),)), "node-0"
            ),
            SHAPE,
            id="no disk",
        ),
        pytest.param(
            lambda cluster: cluster.put_pod("n/p", PodShape(host_ports=PORT), "node-0"),
            replace(SHAPE, host_ports=PORT),
            id="host port taken",
        ),
        pytest.param(
            lambda cluster: cluster.put_pod("n/p", PodShape(labels=SHAPE.labels, namespace="n"), "node-0"),
            replace(SHAPE, anti_affinity=(APART,)),
            id="pods that keep apart",
        ),
        pytest.param(
            lambda cluster: cluster.put_node(
                NodeRow("node-0", {HOSTNAME: "node-0"}, (Taint(key="own", effect="NoSchedule"),), OFFERS)
            ),
            SHAPE,
            id="taint",
        ),
        pytest.param(lambda cluster: cluster.remove_node("node-0"), SHAPE, id="a node that is gone"),
    ],
)
def test_devices_of_a_node_that_does_not_take_the_pod_are_left_alone(change: Change, shape: PodShape) -> None:
    cluster = two_nodes(lambda cluster: None)
    before = looked(cluster, waiting("u", shape))
    change(cluster)
    after = looked(cluster, waiting("u", shape))
    assert before == {"u": "node-0"}
    assert after == {"u": "node-1"}


def test_pods_served_in_one_look_leave_each_other_room() -> None:
    cluster = two_nodes(lambda cluster: None)
    found = looked(cluster, *(waiting(uid, replace(SHAPE, host_ports=PORT)) for uid in "abc"))
    assert sorted(found.values()) == ["node-0", "node-1"]


def test_a_hold_takes_room_until_its_pod_is_seen_there() -> None:
    cluster = two_nodes(lambda cluster: None)
    state = AllocatorState(ScaleUpSettings())
    held = waiting("held")
    assert looked(cluster, state=state) == {}
    state.hold(HoldDevices(held.item, "node-0", (device_of("node-0").name,), 100.0), 0.0)
    assert looked(cluster, held, waiting("other"), state=state) == {"other": "node-1"}
    assert state.takes(held.item)
    for number in range(2):
        cluster.put_pod(f"n/p{number}", PodShape(), "node-0")
    looked(cluster, held, state=state)
    assert not state.takes(held.item), "the kubelet would refuse it: no pod slot is left"


def test_where_somebody_holds_devices_that_cannot_be_told_none_is_given() -> None:
    demand = replace(SHAPE, devices=UNREADABLE_DEMAND)
    cluster = two_nodes(lambda cluster: cluster.put_pod("n/unreadable", demand, "node-0"))
    own = replace(SHAPE, devices=replace(UNREADABLE_DEMAND, is_readable=True))
    assert looked(cluster, waiting("u", own)) == {"u": "node-1"}
