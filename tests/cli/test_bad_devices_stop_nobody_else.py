"""Slices, claims and shares that contradict themselves: named, refused, and nobody else is worse off."""

import json

import pytest
import yaml

from karpool.cli.main import run

DRIVER = "gpu.example.com"


def node(name):
    offers = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": offers, "capacity": offers, "conditions": ready},
    }


def slice_of(name, on, *devices, generation=1, slices=1, **spec):
    pool = {"name": on, "generation": generation, "resourceSliceCount": slices}
    published = {"devices": list(devices)} if devices else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "nodeName": on, "pool": pool, **published, **spec},
    }


def device(name, memory="80Gi", **more):
    return {"name": name, "capacity": {"memory": {"value": memory}}, **more}


def device_class(name, expression):
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def template(name, of_class, *selectors):
    exactly = {
        "deviceClassName": of_class,
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": text}} for text in selectors],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}},
    }


def pod(name, claim="", **annotations):
    claims = [{"name": "g", "resourceClaimTemplateName": claim}] if claim else []
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    told = {f"tensor-fusion.ai/{key}": value for key, value in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": told},
        "spec": {"containers": [container], "resourceClaims": claims},
        "status": {"phase": "Pending"},
    }


OTHER_SET = [{"counterSet": "other", "counters": {"memory": {"value": "10Gi"}}}]
WORLD = [
    *map(node, ("good", "mixed", "counters", "negative")),
    slice_of("good-gpus", "good", device("gpu-0"), device("gpu-1")),
    slice_of("mixed-old", "mixed", device("gpu-0"), slices=2),
    slice_of("mixed-new", "mixed", device("gpu-1"), slices=2, generation=2),
    slice_of(
        "counters-set",
        "counters",
        slices=2,
        sharedCounters=[{"name": "set", "counters": {"memory": {"value": "80Gi"}}}],
    ),
    slice_of("counters-gpus", "counters", device("gpu-0", consumesCounters=OTHER_SET), slices=2),
    slice_of("negative-gpus", "negative", device("gpu-0", "-80Gi")),
    device_class("gpu", f'device.driver == "{DRIVER}"'),
    device_class("broken", "device.driver =="),
    template("one", "gpu"),
    template("cel", "gpu", "device.capacity["),
    template("of-class", "broken"),
    pod("fine", "one"),
    pod("bad-cel", "cel"),
    pod("bad-class", "of-class"),
    pod("zero", **{"vram-request": "0"}),
    pod("minus", **{"vram-request": "-4Gi"}),
]


@pytest.fixture
def karpool(tmp_path, capsys):
    path = tmp_path / "prod.yaml"
    path.write_text(yaml.safe_dump_all(WORLD))

    def command(*words):
        code = run([*words, "--snapshot", str(path), "-o", "json"], "karpool")
        told = capsys.readouterr()
        return code, json.loads(told.out), told.err

    return command


def test_only_devices_that_can_be_given_are_shown_and_the_rest_is_named(karpool):
    code, answer, said = karpool("top", "gpus")

    assert code == 0
    assert [(item["node"], item["device"]) for item in answer["items"]] == [
        ("good", "gpu-0"),
        ("good", "gpu-1"),
    ]
    told = " ".join(answer["problems"]) + said
    assert f"Node mixed: pool {DRIVER}/mixed is incomplete" in told
    assert "counter set other not found" in told
    assert "ResourceSlice negative-gpus: spec.devices[0].capacity[memory]" in told


def test_a_pod_that_asks_rightly_gets_what_is_whole(karpool):
    _, answer, _ = karpool("capacity", "pod/fine", "--replicas", "3")

    assert answer["places"][0]["room"] == 2


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("bad-cel", "device.capacity["),
        ("bad-class", "device.driver =="),
        ("zero", "tensor-fusion.ai/vram-request"),
        ("minus", "tensor-fusion.ai/vram-request"),
    ],
)
def test_what_is_wrong_is_named(karpool, name, named):
    code, answer, _ = karpool("capacity", f"pod/{name}")
    _, explained, _ = karpool("explain", "pod", name)

    assert code == 3 and answer["places"][0]["room"] == 0
    assert named in json.dumps(answer).replace("\\", "")
    assert named in json.dumps(explained).replace("\\", "")
