import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device import GpuObject, from_object
from karpool.model.devices.pod_requests import gpu_request_of
from karpool.model.devices.request import GpuRequest
from karpool.model.devices.tensor_fusion import BadGpuRequest, assigned, read_request
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import shape_of

GIB = 2**30
T = "tensor-fusion.ai/"


def pod(annotations=None, limits=None, **spec):
    container = {"name": "main", "resources": {"requests": limits or {}, "limits": limits or {}}}
    meta = {"name": "web", "namespace": "team", "uid": "u", "annotations": annotations or {}}
    return decode({"metadata": meta, "spec": {"containers": [container], **spec}}, Pod)


@pytest.mark.parametrize(
    ("given_pod", "expected"),
    [
        pytest.param(
            pod({T + "gpupool": "p", T + "tflops-request": "10", T + "vram-request": "2Gi"}),
            {"pool": "p", "request": DeviceShare(10_000, 2 * GIB), "isolation": "soft", "resource": ""},
            id="TensorFusion",
        ),
        pytest.param(
            pod({T + "compute-percent-request": "25", T + "gpu-count": "2"}, {"nvidia.com/gpu": "1"}),
            {"request": DeviceShare(percent_milli=25_000), "count": 2, "resource": ""},
            id="TensorFusion wins over plain resources",
        ),
        pytest.param(
            pod(limits={"nvidia.com/gpu": "4"}),
            {"count": 4, "isolation": "shared", "resource": "nvidia.com/gpu", "vendor": "NVIDIA"},
            id="plain",
        ),
        pytest.param(
            pod(limits={"nvidia.com/gpu.shared": "2"}),
            {"count": 2, "isolation": "shared", "resource": "nvidia.com/gpu.shared"},
            id="time slices",
        ),
        pytest.param(
            pod(limits={"nvidia.com/mig-1g.5gb": "1"}),
            {"count": 1, "isolation": "shared", "resource": "nvidia.com/mig-1g.5gb"},
            id="MIG",
        ),
        pytest.param(
            pod(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}),
            {
                "request": DeviceShare(0, 3000 * 2**20, 30_000),
                "isolation": "soft",
                "resource": "nvidia.com/gpu",
            },
            id="HAMi, memory in MiB",
        ),
        pytest.param(
            pod(limits={"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"}),
            {"request": DeviceShare(vram_percent_milli=50_000), "count": 2, "isolation": "soft"},
            id="HAMi, memory in percent",
        ),
        pytest.param(
            pod({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
            {"request": DeviceShare(percent_milli=50_000, vram_percent_milli=50_000), "count": 2},
            id="KAI, fraction",
        ),
        pytest.param(
            pod({"gpu-memory": "2000"}),
            {"request": DeviceShare(0, 2000 * 2**20), "count": 1},
            id="KAI, memory",
        ),
        pytest.param(
            pod(
                {T + "gpupool": "p", T + "gpu-model": "T4"},
                {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
            ),
            {
                "request": DeviceShare(0, 3000 * 2**20),
                "pool": "p",
                "model": "T4",
                "resource": "nvidia.com/gpu",
            },
            id="HAMi beside a pool",
        ),
        pytest.param(
            pod({T + "gpupool": "p", "gpu-fraction": "0.5"}),
            {"request": DeviceShare(percent_milli=50_000, vram_percent_milli=50_000), "pool": "p"},
            id="KAI beside a pool",
        ),
        pytest.param(
            pod({T + "gpupool": "p"}, {"nvidia.com/gpu": "2"}),
            {"count": 2, "isolation": "shared", "resource": "nvidia.com/gpu", "is_of_plugin": True},
            id="plain beside a pool",
        ),
        pytest.param(
            pod({T + "gpupool": "p", T + "isolation": "shared"}),
            {"request": DeviceShare(), "isolation": "shared", "resource": ""},
            id="TensorFusion, a whole device",
        ),
        pytest.param(
            pod(limits={"amd.com/gpu": "1"}), {"resource": "amd.com/gpu", "vendor": "AMD"}, id="AMD"
        ),
    ],
)
def test_every_dialect_becomes_one_kind_of_request(given_pod, expected):
    found = gpu_request_of(given_pod)

    assert {name: getattr(found, name) for name in expected} == expected


def test_a_pod_without_gpu_asks_for_none():
    assert gpu_request_of(pod(limits={"cpu": "1"})) is None
    assert gpu_request_of(pod({T + "gpupool": "p"})) is None


def test_a_client_carries_the_annotations_of_its_worker_and_asks_for_nothing_itself():
    asked = {T + "gpupool": "p", T + "vram-request": "2Gi"}
    client, worker = (
        msgspec.structs.replace(
            pod(asked), metadata=msgspec.structs.replace(pod(asked).metadata, labels={T + "component": role})
        )
        for role in ("client", "worker")
    )

    assert gpu_request_of(client) is None and shape_of(client).devices is None
    assert gpu_request_of(worker) is not None and shape_of(worker).devices is not None


def test_a_pod_brings_its_placement_and_its_own_needs():
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": term}],
        }
    }
    found = gpu_request_of(
        pod(
            limits={"nvidia.com/gpu": "1", "cpu": "2", "memory": "4Gi"},
            nodeSelector={"disk": "ssd"},
            affinity=affinity,
            priority=7,
        ),
        default_pool="fleet",
    )

    assert [key for key, _ in found.node_terms[0].labels] == ["disk", "zone"]
    assert found.preferred[0].weight == 5
    assert (found.cpu_milli, found.memory_bytes, found.priority, found.pool) == (2000, 4 * GIB, 7, "fleet")


@pytest.mark.parametrize(
    ("given_pod", "code", "words"),
    [
        pytest.param(pod({T + "gpu-count": "0"}), "gpu_count_out_of_range", "1 to 128", id="no GPUs"),
        pytest.param(pod({T + "gpu-count": "many"}), "gpu_count_out_of_range", "'many'", id="not a number"),
        pytest.param(
            pod({T + "gpupool": "p", T + "gpu-indices": "0,,1"}), "bad_gpu_indices", "0,,1", id="indices"
        ),
        pytest.param(
            pod({T + "vram-request": "lots"}), "bad_request", T + "vram-request", id="garbage amount"
        ),
        pytest.param(pod({T + "vram-request": "-1Gi"}), "bad_request", "negative", id="negative amount"),
        pytest.param(
            pod({T + "tflops-request": "1", T + "compute-percent-request": "1"}),
            "bad_request",
            "leave one out",
            id="TFLOPS and percent",
        ),
        pytest.param(
            pod({T + "gpupool": "p", T + "isolation": "firm"}), "bad_request", "soft, shared", id="mode"
        ),
        pytest.param(pod({T + "gpu-count": "2"}), "bad_request", "asks for nothing", id="a count of nothing"),
        pytest.param(
            pod({T + "vram-request": "0"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}),
            "bad_request",
            "'0': asks for nothing",
            id="zero beside HAMi",
        ),
        pytest.param(pod({"gpu-fraction": "1.5"}), "bad_request", "at most 1", id="KAI, too much"),
        pytest.param(pod({"gpu-fraction": "half"}), "bad_request", "half", id="KAI, garbage"),
        pytest.param(
            pod(limits={"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "1"}),
            "bad_request",
            "one kind of GPU",
            id="whole and MIG",
        ),
        pytest.param(pod(limits={"nvidia.com/gpu": "500"}), "gpu_count_out_of_range", "500", id="plain"),
        pytest.param(
            pod(limits={"nvidia.com/gpu": "1", "nvidia.com/gpucores": "200"}), "bad_request", "200", id="HAMi"
        ),
    ],
)
def test_a_bad_request_names_the_pod_the_field_and_the_value(given_pod, code, words):
    with pytest.raises(BadGpuRequest) as error:
        gpu_request_of(given_pod)

    assert error.value.code == code
    assert "team/web" in str(error.value)
    assert words in str(error.value)


KEYS = [
    T + key
    for key in [
        "gpupool",
        "tflops-request",
        "vram-request",
        "compute-percent-request",
        "tflops-limit",
        "gpu-count",
        "gpu-indices",
        "isolation",
        "qos",
        "gang-enabled",
        "gang-desired-members",
        "gang-required-members",
        "gang-timeout",
        "gpu-ids",
    ]
] + ["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"]
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["true", "2", "-1", "1e400", "9" * 300, "5m", "0,1", "1Gi", "٣", "\x00", "99999999999"]),
)


@given(st.dictionaries(st.sampled_from(KEYS), TEXTS), st.dictionaries(
    st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/mig-1g.5gb"]),
    st.sampled_from(["0", "1", "3", "-1", "1e30", "0.5", "nonsense"]),
))  # fmt: skip
def test_whatever_is_written_is_a_request_or_a_bad_request(annotations, limits):
    try:
        found = gpu_request_of(pod(annotations, limits))
    except BadGpuRequest as error:
        assert error.problems
        assert len(str(error)) < 5000
        return
    assert found is None or isinstance(found, GpuRequest)
    if found is not None:
        assert 1 <= found.count <= 128
        assert found.isolation in ("shared", "partitioned") or found.request != DeviceShare()
        need = found.request.on(DeviceAmount(100_000, 16 * GIB))
        assert 0 <= need.tflops_milli < 2**63
        assert 0 <= need.vram_bytes < 2**63


def test_one_bad_annotation_does_not_hide_the_others():
    _, problems = read_request({T + "gpu-count": "x", T + "gpu-indices": "y", T + "qos": "z"})

    assert [str(problem.code) for problem in problems] == [
        "gpu_count_out_of_range",
        "bad_gpu_indices",
        "bad_request",
    ]


def test_devices_written_on_a_pod_are_read_back():
    assert assigned({T + "gpu-ids": " gpu-1,gpu-2 ,"}) == ("gpu-1", "gpu-2")


def gpu_object(**status):
    meta = {
        "name": "gpu-1",
        "labels": {T + "gpupool": "p", T + "managed-by": "node-1"},
        "annotations": status.pop("annotations", {}),
    }
    return decode({"metadata": meta, "status": status}, GpuObject)


def test_a_device_is_read_from_its_object():
    found = from_object(
        gpu_object(
            phase="Running",
            gpuModel="A100",
            capacity={"tflops": "312", "vram": "80Gi"},
            nodeSelector={"kubernetes.io/hostname": "host-1"},
            usedBy="tensor-fusion",
            numaNode=-1,
            annotations={T + "virtualization-capabilities": json.dumps({"supportsHardIsolation": True})},
        )
    )

    assert (found.node, found.owner, found.pool, found.model) == ("host-1", "node-1", "p", "A100")
    assert found.capacity == DeviceAmount(312_000, 80 * GIB)
    assert found.numa_node is None
    assert found.capabilities == {"SupportsHardIsolation": True}


def test_a_missing_device_is_not_running():
    found = from_object(gpu_object(phase="Running", annotations={T + "gpu-missing-since": "2026-01-01"}))

    assert found.phase == "Unknown"


@pytest.mark.parametrize("text", ["{", "[]", "null", "[" * 5000])
def test_capabilities_that_cannot_be_read_grant_nothing(text):
    found = from_object(gpu_object(annotations={T + "virtualization-capabilities": text}))

    assert found.capabilities == {}


@pytest.mark.parametrize("capacity", [{"tflops": "-1"}, {"vram": "9Ei"}, {"tflops": "1e15"}, {"vram": "x"}])
def test_a_capacity_that_no_device_has_is_refused(capacity):
    with pytest.raises(Invalid, match=r"status\.capacity"):
        from_object(gpu_object(capacity=capacity))
