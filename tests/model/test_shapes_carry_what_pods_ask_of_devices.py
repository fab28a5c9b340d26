"""A pod's shares of devices are part of its shape, whatever dialect they are written in."""

import pytest

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.devices.amounts import DeviceShare
from karpool.model.devices.request import DeviceDemand
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape, shape_of

GIB = 2**30


def pod(name: str, annotations: dict[str, str] | None = None, requests: dict[str, str] | None = None) -> Pod:
    raw = {
        "metadata": {"name": name, "namespace": "team", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests or {"cpu": "1"}}}]},
    }
    return decode(raw, Pod)


def share(tflops: str, vram: str = "4Gi") -> dict[str, str]:
    return {"tensor-fusion.ai/tflops-request": tflops, "tensor-fusion.ai/vram-request": vram}


def test_pods_of_one_spec_with_different_shares_have_different_shapes() -> None:
    """The table compiles a spec once; shares are in annotations, and must not be those of the first pod."""
    cluster = ClusterRoom()
    for name, annotations in {"a": share("10"), "b": share("20"), "c": None, "d": share("10")}.items():
        cluster.upsert_pod(pod(name, annotations))
    shapes = {name: _shape(cluster, name) for name in "abcd"}
    assert shapes["a"].devices == DeviceDemand(share=DeviceShare(10_000, 4 * GIB))
    assert shapes["b"].devices == DeviceDemand(share=DeviceShare(20_000, 4 * GIB))
    assert shapes["c"].devices is None
    assert shapes["d"] == shapes["a"]


def test_other_annotations_make_no_other_shape() -> None:
    cluster = ClusterRoom()
    cluster.upsert_pod(pod("a", {**share("10"), "tensor-fusion.ai/gpu-ids": "gpu-1", "checksum": "1"}))
    cluster.upsert_pod(pod("b", {**share("10"), "tensor-fusion.ai/gpu-ids": "gpu-2", "checksum": "2"}))
    assert _shape(cluster, "a") is _shape(cluster, "b")
    assert len(cluster.snapshot().shapes) == 1


def _shape(cluster: ClusterRoom, name: str) -> PodShape:
    found = cluster.shape_of("team", name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("annotations", "requests", "demand", "left"),
    [
        ({}, {"nvidia.com/gpu": "2"}, None, {"nvidia.com/gpu": 2}),
        ({}, {"nvidia.com/mig-1g.5gb": "1"}, None, {"nvidia.com/mig-1g.5gb": 1}),
        (
            {},
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1024"},
            DeviceDemand(count=2, share=DeviceShare(0, GIB), vendor="NVIDIA"),
            {},
        ),
        (
            {"tensor-fusion.ai/gpupool": "a"},
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1024"},
            DeviceDemand(count=2, share=DeviceShare(0, GIB), vendor="NVIDIA", pool="a"),
            {},
        ),
        ({"tensor-fusion.ai/gpupool": "a"}, {"nvidia.com/gpu": "2"}, None, {"nvidia.com/gpu": 2}),
        (
            {"gpu-fraction": "0.5"},
            {"cpu": "1"},
            DeviceDemand(share=DeviceShare(0, 0, 50_000, 50_000), vendor="NVIDIA"),
            {"cpu": 1000},
        ),
        (
            {**share("10"), "tensor-fusion.ai/gpupool": "a", "tensor-fusion.ai/gpu-model": "NVIDIA A10G"},
            {"cpu": "1"},
            DeviceDemand(share=DeviceShare(10_000, 4 * GIB), pool="a", model="A10G"),
            {"cpu": 1000},
        ),
    ],
)
def test_every_dialect(
    annotations: dict[str, str],
    requests: dict[str, str],
    demand: DeviceDemand | None,
    left: dict[str, int],
) -> None:
    shape = shape_of(pod("a", annotations, requests))
    assert shape.devices == demand
    assert dict(shape.requests) == left


@pytest.mark.parametrize(
    "annotations",
    [
        share("ten"),
        {"tensor-fusion.ai/vram-request": "0"},
        {**share("1"), "tensor-fusion.ai/gpu-count": "0"},
        {"gpu-fraction": "7"},
    ],
)
def test_what_cannot_be_read_is_not_no_demand(annotations: dict[str, str]) -> None:
    """The pod keeps its CPU, and is known to hold something of devices."""
    shape = shape_of(pod("a", annotations))
    assert shape.devices is not None and not shape.devices.is_readable
    assert dict(shape.requests) == {"cpu": 1000}
