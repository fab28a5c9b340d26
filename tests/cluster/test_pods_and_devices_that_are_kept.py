"""Pods that somebody decides about one by one, devices with their holders, quotas that cannot be read."""

from dataclasses import replace

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import change_of_raw
from karpool.cluster.cluster import Cluster
from karpool.gpu.controller.cluster_view import GpuClusterReader, gpu_nodes
from karpool.gpu.controller.worker_pods import WorkerPods
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState
from karpool.gpu.records.written_records import WrittenRecords
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod

GIB = 2**30
T = "tensor-fusion.ai/"
ASPECTS = Aspect.DEVICES | Aspect.DEVICE_QUOTAS | Aspect.POOLS | Aspect.NODECLAIMS | Aspect.RECORDS
GPU = {
    "apiVersion": "tensor-fusion.ai/v1",
    "kind": "GPU",
    "metadata": {"name": "gpu-1", "labels": {T + "gpupool": "p"}},
    "status": {
        "phase": "Running",
        "capacity": {"tflops": "100", "vram": "16Gi"},
        "nodeSelector": {"kubernetes.io/hostname": "n1"},
    },
}


def node(name, **allocatable):
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "status": {"allocatable": allocatable},
    }


def pod(name, scheduler="ours", node_name="", phase="Pending", **annotations):
    asked = {T + key.replace("_", "-"): text for key, text in annotations.items()}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "team", "uid": name, "annotations": asked},
        "spec": {"schedulerName": scheduler, "nodeName": node_name, "containers": [{"name": "c"}]},
        "status": {"phase": phase},
    }


def quota(spec):
    meta = {"name": "q", "namespace": "team"}
    return {"kind": "GPUResourceQuota", "apiVersion": "tensor-fusion.ai/v1", "metadata": meta, "spec": spec}


def cluster_of(*objects):
    cluster = Cluster(ASPECTS, keeps=WorkerPods("ours").is_worker)
    cluster.load(objects, 0.0)
    return cluster


def test_only_living_pods_that_were_asked_for_are_kept():
    cluster = cluster_of(pod("a"), pod("b", "default-scheduler"), pod("c"), node("n1"))
    before = cluster.snapshot()
    ended = change_of_raw(pod("c", phase="Succeeded"), ObjectKey("team", "c"), Pod)
    cluster.apply(kinds.PODS, [ended], 1.0)
    cluster.load([pod("a", scheduler="default-scheduler")], 1.0)

    assert {key.name for key in before.kept_pods} == {"a", "c"}
    assert dict(cluster.snapshot().kept_pods) == {}
    assert {key.name for key in before.kept_pods} == {"a", "c"}


def test_a_change_of_a_kept_pod_alone_is_another_snapshot():
    cluster = cluster_of(pod("a", vram_request="1Gi"))
    before = cluster.snapshot()
    cluster.load([pod("a", vram_request="1Gi", gpu_ids="gpu-1")], 1.0)

    assert cluster.snapshot() is not before
    assert cluster.snapshot().kept_pods[ObjectKey("team", "a")].annotations[T + "gpu-ids"] == "gpu-1"


def test_a_device_tells_who_holds_it_and_what_is_left():
    holder = pod("a", node_name="n1", vram_request="4Gi", tflops_request="30", gpu_ids="gpu-1")
    snapshot = cluster_of(node("n1", cpu="4"), node("n2", **{"nvidia.com/gpu": "2"}), GPU, holder).snapshot()

    (use,) = snapshot.devices["n1"]
    assert (use.device.name, use.holders, use.described) == ("gpu-1", ("team/a",), True)
    assert use.left == DeviceAmount(70_000, 12 * GIB) and not use.closed
    assert [idle.described for idle in snapshot.devices["n2"]] == [False, False]
    assert gpu_nodes(snapshot) == {"n1", "n2"}


def test_a_quota_that_cannot_be_read_admits_nothing():
    def quotas(spec):
        reader = GpuClusterReader(WorkerPods("ours"), WrittenRecords(), namespace="smart")
        return reader.read(cluster_of(quota(spec)).snapshot()).quotas

    assert quotas({"total": {"maxWorkers": "many"}})["team"].total.max_workers == 0
    assert quotas({"total": {"maxWorkers": -1}})["team"].total.max_workers == 0
    assert quotas({"total": {"maxWorkers": 7}})["team"].total.max_workers == 7
    reader = GpuClusterReader(WorkerPods("ours"), WrittenRecords(), namespace="smart")
    assert reader.read(cluster_of().snapshot()).quotas == {}


def test_records_of_other_namespaces_are_not_ours():
    raw = {"kind": "ScaleUp", "apiVersion": "gpu.karpool.dev/v1alpha1", "spec": {"pool": "p"}}
    name = DemandKey("p", "", 1, 0, 0).name
    cluster = cluster_of(
        {
            **raw,
            "metadata": {"name": name, "namespace": "smart", "creationTimestamp": "2026-01-01T00:00:00Z"},
        },
        {**raw, "metadata": {"name": "other", "namespace": "theirs"}},
    )
    reader = GpuClusterReader(WorkerPods("ours"), WrittenRecords(), namespace="smart")

    assert len(cluster.snapshot().objects(kinds.SCALE_UPS)) == 2
    assert len(reader.read(cluster.snapshot()).records) <= 1
    assert "other" not in reader.read(cluster.snapshot()).records


RECORD = ScaleUpRecord(DemandKey("p", "A100", 1, 1, 1), ScaleUpState.PENDING, 0.0, 0.0, uid="u", version="5")


def test_what_we_wrote_counts_until_the_watch_is_as_new():
    written, old, new = WrittenRecords(), replace(RECORD, version="4"), replace(RECORD, version="6")
    written.wrote(RECORD)

    assert written.merged({}) == {RECORD.name: RECORD}
    assert written.merged({RECORD.name: old}) == {RECORD.name: RECORD}
    assert written.merged({RECORD.name: new}) == {RECORD.name: new}
    assert written.merged({RECORD.name: old}) == {RECORD.name: old}


def test_a_record_that_somebody_deleted_is_gone_though_we_wrote_it_last():
    written = WrittenRecords()
    written.merged({RECORD.name: replace(RECORD, version="4")})
    written.wrote(RECORD)

    assert written.merged({}) == {}


def test_what_we_removed_is_gone_while_the_watch_still_shows_it():
    written = WrittenRecords()
    written.wrote(RECORD)
    written.removed(RECORD)

    assert written.merged({RECORD.name: RECORD}) == {}
    assert written.merged({RECORD.name: replace(RECORD, uid="v")}) == {RECORD.name: replace(RECORD, uid="v")}
