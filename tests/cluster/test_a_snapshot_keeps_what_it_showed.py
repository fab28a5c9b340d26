"""A snapshot is for keeps: whatever happens to the cluster later, it shows what it showed."""

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.cluster_room import ClusterRoom
from tests.cluster.test_pods_and_devices_that_are_kept import ASPECTS, GPU, T, cluster_of, node, pod


def gpu(name, host):
    meta = {"name": name, "labels": {T + "gpupool": "p"}}
    status = GPU["status"] | {"nodeSelector": {"kubernetes.io/hostname": host}}
    return GPU | {"metadata": meta, "status": status}


def test_devices_and_who_holds_them():
    cluster = cluster_of(node("n1", cpu="8"), node("n2", cpu="8"), gpu("gpu-1", "n1"))
    before = cluster.snapshot()
    names, uses = list(before.room.devices.names), dict(before.devices)

    cluster.load([gpu("gpu-2", "n2"), gpu("gpu-3", "n1")], 1.0)

    assert cluster.snapshot().devices.keys() == {"n1", "n2"}
    assert dict(before.devices) == uses
    assert list(before.room.devices.names) == names == ["gpu-1"]


def test_labels_of_namespaces():
    state = ClusterRoom()
    state.upsert_namespace("team", {"tier": "gold"})
    before = state.snapshot()

    state.upsert_namespace("team", {"tier": "lead"})
    state.upsert_namespace("other", {})

    assert dict(before.namespaces) == {"team": {"tier": "gold"}}
    assert state.snapshot().namespaces["team"] == {"tier": "lead"}


def test_nodes_that_a_pod_holds_which_nobody_can_read():
    cluster = Cluster(ASPECTS)
    cluster.load([node("n1", cpu="8", pods="9"), node("n2", cpu="8", pods="9")], 0.0)
    unreadable = pod("a", node_name="n1")
    unreadable["spec"]["containers"] = "none"
    cluster.load([unreadable], 0.0)
    before = cluster.snapshot()
    assert dict(before.blocked) == {"n1": 1}

    second = pod("b", node_name="n2")
    second["spec"]["containers"] = "none"
    cluster.load([second], 1.0)

    assert dict(before.blocked) == {"n1": 1}
    assert cluster.snapshot().blocked.keys() == {"n1", "n2"}


def test_a_node_that_comes_has_nothing_of_one_that_went():
    cluster = Cluster(Aspect.ROOM)
    cluster.load(
        [node("a", cpu="8", pods="9"), node("b", cpu="8", pods="9", **{"example.com/fpga": "4"})], 0.0
    )
    cluster.snapshot()
    cluster.room.remove_node("b")
    cluster.load([node("c", cpu="2")], 0.0)

    room = cluster.snapshot().room
    row = room.find("c")
    assert [int(room.free(name)[row]) for name in ("cpu", "example.com/fpga", "pods")] == [2000, 0, 0]
    assert [int(room.allocatable(name)[row]) for name in ("example.com/fpga", "pods")] == [0, 0]
