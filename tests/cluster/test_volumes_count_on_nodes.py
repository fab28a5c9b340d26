"""How many volumes a node may have attached, and claims of one pod at a time, in any order of events."""

import json
from itertools import permutations
from pathlib import Path

import pytest

from karpool.cli.main import run
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.packing.counting.count import count
from karpool.packing.fit_reasons import explain_nodes, show_count

SNAPSHOTS = Path(__file__).parents[1] / "consolidation" / "snapshots"
DRIVER = "ebs.csi.aws.com"


def node(name="n"):
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "50"}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def csi_node(count_, name="n"):
    drivers = [{"name": DRIVER, "nodeID": name, "allocatable": {"count": count_}}]
    return {
        "kind": "CSINode",
        "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": name},
        "spec": {"drivers": drivers},
    }


def claim(name, mode="ReadWriteOnce"):
    meta = {"name": name, "namespace": "team"}
    spec = {"accessModes": [mode], "volumeName": f"pv-{name}"}
    bound = {"phase": "Bound"}
    volume = {"accessModes": [mode], "csi": {"driver": DRIVER, "volumeHandle": name}}
    return [
        {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "metadata": meta,
            "spec": spec,
            "status": bound,
        },
        {"kind": "PersistentVolume", "apiVersion": "v1", "metadata": {"name": f"pv-{name}"}, "spec": volume},
    ]


def attachment(name, on="n", driver=DRIVER, volume="pv-a"):
    spec = {"attacher": driver, "nodeName": on, "source": {"persistentVolumeName": volume}}
    return {
        "kind": "VolumeAttachment",
        "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": name},
        "spec": spec,
        "status": {"attached": True},
    }


def pod(name, claim_name, on=""):
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
    containers = [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"nodeName": on, "volumes": volumes, "containers": containers},
    }


def told(*objects):
    cluster = Cluster(Aspect.VOLUMES)
    for position, raw in enumerate(objects):
        assert cluster.load([raw], float(position)) == []
    return cluster


def room_for(cluster, name):
    shape = cluster.room.shape_of("team", name)
    return count(cluster.snapshot().room, shape).total


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_node_takes_as_many_volumes_as_its_csi_node_says(order):
    parts = [[node()], [csi_node(3)], claim("a") + claim("b"), [pod("a", "a", "n"), pod("b", "b")]]
    cluster = told(*(raw for index in order for raw in parts[index]))
    assert room_for(cluster, "b") == 2


def test_without_a_limit_there_is_none_and_a_limit_that_goes_is_gone():
    objects = [node(), *claim("a"), pod("a", "a")]
    assert room_for(told(*objects), "a") == 50
    limited = told(*objects, csi_node(3))
    assert room_for(limited, "a") == 3
    limited.room.attach_limits.drop_csi_node("n")
    assert room_for(limited, "a") == 50


def test_another_node_without_a_csi_node_takes_any_number():
    cluster = told(node("n"), node("m"), csi_node(1), *claim("a"), pod("a", "a"))
    assert room_for(cluster, "a") == 51


def test_a_csi_node_that_cannot_be_read_lets_no_volume_in():
    cluster = told(node("n"), node("m"), csi_node(4, "m"), *claim("a"), pod("a", "a"))
    bad = csi_node("many")
    (problem,) = cluster.load([bad], 9.0)
    assert "CSINode" in str(problem) and "n" in str(problem)
    assert room_for(cluster, "a") == 4
    assert cluster.load([csi_node(2)], 10.0) == []
    assert room_for(cluster, "a") == 6
    assert not list(cluster.problems)


def test_a_csi_node_that_cannot_be_read_lets_no_volume_in_where_no_other_limits_the_driver():
    cluster = told(node("n"), *claim("a"), pod("a", "a"))
    cluster.load([csi_node("many")], 9.0)
    assert room_for(cluster, "a") == 0
    cluster.room.attach_limits.drop_csi_node("n")
    assert room_for(cluster, "a") == 50


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_a_volume_keeps_its_place_until_it_is_detached(order):
    """Attached and used is one place; attached and not used any more is one, too, and only on its node."""
    parts = [
        [node(), node("m")],
        [csi_node(3), csi_node(3, "m")],
        claim("a") + claim("b"),
        [pod("a", "a", "n"), pod("b", "b")],
        [attachment("used"), attachment("left", volume="pv-gone")],
    ]
    cluster = told(*(raw for index in order for raw in parts[index]))
    assert room_for(cluster, "b") == 1 + 3
    cluster.room.remove_pod("team", "a")
    assert room_for(cluster, "b") == 1 + 3, "its volume is still attached"
    cluster.room.attach_limits.drop_attachment("used")
    assert room_for(cluster, "b") == 2 + 3
    cluster.room.attach_limits.drop_attachment("left")
    assert room_for(cluster, "b") == 3 + 3


def test_a_volume_whose_pod_runs_elsewhere_by_now_keeps_its_place_where_it_was():
    limits = [csi_node(3), csi_node(3, "m")]
    cluster = told(node(), node("m"), *limits, *claim("a"), *claim("b"), pod("a", "a", "m"), pod("b", "b"))
    assert room_for(cluster, "b") == 3 + 2
    assert cluster.load([attachment("old", on="n"), attachment("new", on="m")], 20.0) == []
    assert room_for(cluster, "b") == 2 + 2


def test_a_claim_that_is_bound_later_uses_the_volume_that_is_attached():
    cluster = told(node(), csi_node(3), attachment("one"), *claim("b"), pod("a", "a", "n"), pod("b", "b"))
    assert room_for(cluster, "b") == 2
    assert cluster.load(claim("a"), 9.0) == []
    assert room_for(cluster, "b") == 2, "now the pod takes the place, and the attachment is the pod's"


def test_an_attachment_that_says_too_little_takes_a_place_wherever_it_may_be():
    objects = [node(), node("m"), csi_node(3), csi_node(3, "m"), *claim("a"), pod("a", "a")]
    assert room_for(told(*objects), "a") == 6
    cluster = told(*objects)
    (problem,) = cluster.load([attachment("odd", driver="")], 9.0)
    assert "VolumeAttachment" in str(problem) and "spec.attacher" in str(problem)
    assert room_for(cluster, "a") == 2 + 3, "of every driver, on its node"
    (problem,) = cluster.load([attachment("odd", on={"name": "n"})], 10.0)
    assert room_for(cluster, "a") == 2 + 2, "on every node"
    assert cluster.load([attachment("odd", driver="other.driver")], 11.0) == []
    assert room_for(cluster, "a") == 6
    assert not list(cluster.problems)


@pytest.mark.parametrize(
    ("source", "provisioner", "driver"),
    [
        ("awsElasticBlockStore", "kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
        ("gcePersistentDisk", "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
        ("azureDisk", "kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ],
)
def test_volumes_of_the_time_before_csi_are_attached_by_a_driver(source, provisioner, driver):
    limits = csi_node(1)
    limits["spec"]["drivers"][0]["name"] = driver
    old_claim, old_volume = claim("a")
    old_volume["spec"] = {"accessModes": ["ReadWriteOnce"], source: {"volumeID": "v"}}
    cluster = told(node(), limits, old_claim, old_volume, pod("a", "a"), node("m"))
    assert room_for(cluster, "a") == 1 + 50
    meta = {"name": "old"}
    storage_class = {
        "kind": "StorageClass",
        "apiVersion": "storage.k8s.io/v1",
        "metadata": meta,
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    waits = {**old_claim, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "old"}, "status": {}}
    cluster = told(node(), limits, storage_class, waits, pod("a", "a"), node("m"))
    assert room_for(cluster, "a") == 1 + 50


def test_the_reason_is_said_in_words():
    cluster = told(node(), csi_node(1), *claim("a"), *claim("b"), pod("a", "a", "n"), pod("b", "b"))
    shape = cluster.room.shape_of("team", "b")
    (reason,) = explain_nodes(cluster.snapshot().room, shape)
    assert f"too many volumes of {DRIVER} are attached (room for 0, asked 1)" in show_count(reason)


@pytest.mark.parametrize("holder_first", [True, False])
def test_a_claim_of_one_pod_at_a_time_locks_others_out_until_it_is_let_go(holder_first):
    pods = [pod("holder", "a", "n"), pod("waiting", "a")]
    cluster = told(
        node("n"), node("m"), *claim("a", "ReadWriteOncePod"), *(pods if holder_first else pods[::-1])
    )
    assert room_for(cluster, "waiting") == 0
    assert room_for(cluster, "holder") > 0  # it may go elsewhere: nobody else has it
    cluster.room.remove_pod("team", "holder")
    assert room_for(cluster, "waiting") > 0


def test_claims_of_several_pods_lock_nobody_out():
    cluster = told(node("n"), *claim("a", "ReadWriteMany"), pod("holder", "a", "n"), pod("waiting", "a"))
    assert room_for(cluster, "waiting") > 0


def test_capacity_counts_volumes(tmp_path, capsys):
    workload = tmp_path / "pod.yaml"
    workload.write_text(json.dumps(pod("new", "web") | {"status": {}}))
    path = str(SNAPSHOTS / "volume-limit.yaml")
    assert run(["capacity", "-f", str(workload), "--snapshot", path, "-o", "json"], "karpool") == 0
    answer = json.loads(capsys.readouterr().out)
    (existing,) = [place for place in answer["places"] if place["name"] == "existing nodes"]
    assert existing["room"] == 15  # by cpu of `held` alone; with the other node they would be 25
    (refusal,) = answer["refusals"]
    assert refusal["reason"] == f"too many volumes of {DRIVER} are attached (room for 0, asked 1)"


@pytest.mark.parametrize(("mode", "most"), [("ReadWriteOncePod", 1), ("ReadWriteMany", 50)])
def test_replicas_that_share_a_claim_of_one_pod_at_a_time_are_one(mode, most, tmp_path, capsys):
    state, workload = tmp_path / "cluster.json", tmp_path / "web.json"
    state.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [node(), *claim("a", mode)]}))
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod("web", "a")["spec"] | {"nodeName": ""}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    meta = {"name": "web", "namespace": "team"}
    raw = {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": meta, "spec": spec}
    workload.write_text(json.dumps(raw))
    code = run(["capacity", "-f", str(workload), "--snapshot", str(state), "-o", "json"], "karpool")
    answer = json.loads(capsys.readouterr().out)
    assert answer["most"] == most and (code == 0) == (most >= 3)
    said = "claim team/a may be used by one pod at a time, not by 3"
    assert answer["limits"] == ([said] if most == 1 else [])
    (existing,) = [place for place in answer["places"] if place["name"] == "existing nodes"]
    assert existing["room"] == most
