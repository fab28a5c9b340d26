"""Moves beside real Karpenter where they are hard, and what holds a node on the real API server."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import karpool_fleet.apiserver
from e2e.kubectl import Kubectl, Object, wait_for
from e2e.member import Member, without_nodes
from e2e.scene import Scene
from e2e.test_consolidation import bought, budget, consolidator, planned, pool, types_of
from e2e.workloads import deployment

BUFFERS = (
    Path(karpool_fleet.apiserver.__file__).parent / "data/crds/autoscaling.x-k8s.io_capacitybuffers.yaml"
)
DRIVER = "gpu.example.com"


@pytest.fixture
def empty(elastic: Member) -> Iterator[Member]:
    with without_nodes(elastic):
        yield elastic


def phases(member: Member) -> list[str]:
    records = member.kubectl.items(
        "configmaps", "-n", "karpool-system", "-l", "consolidation.karpool.dev/record=move"
    )
    return sorted(record["metadata"]["labels"]["consolidation.karpool.dev/phase"] for record in records)


def reasons(member: Member, *flags: str) -> dict[str, str]:
    """By node that stays, the first reason."""
    return {held["node"]: held["why"][0]["code"] for held in planned(member, *flags)["held"]}


@contextlib.contextmanager
def applied(kubectl: Kubectl, *objects: Object) -> Iterator[None]:
    kubectl.apply(*objects)
    try:
        yield
    finally:
        for raw in reversed(objects):
            meta = raw["metadata"]
            space = ("-n", meta["namespace"]) if "namespace" in meta else ()
            kubectl("delete", raw["kind"], meta["name"], *space, "--ignore-not-found", "--wait=false")


def test_five_replacements_at_once_under_one_budget_and_apart(scene: Scene, empty: Member) -> None:
    kubectl, namespace = empty.kubectl, scene.namespace()
    earlier = bought(empty)
    kubectl.apply(pool("m5.large", "m5.4xlarge", k=3))
    kubectl.apply(deployment("big", namespace, 5, "10"))
    empty.wait_running(namespace, 5)
    term = {"labelSelector": {"matchLabels": {"app": "small"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    kubectl.apply(deployment("small", namespace, 5, "300m", affinity=apart))
    kubectl.apply(budget(namespace, maxUnavailable=1))
    empty.wait_running(namespace, 10)
    kubectl("delete", "deployment", "big", "-n", namespace)
    empty.wait_running(namespace, 5)
    assert types_of(empty) == ["m5.4xlarge"] * 5

    consolidator(scene, empty)
    smallest: list[int] = []

    def replaced() -> bool:
        smallest.append(len(empty.pods(namespace, phase="Running")))
        return types_of(empty) == ["m5.large"] * 5 and len(kubectl.items("nodes")) == 5

    wait_for("all five were replaced", replaced, 400)
    empty.wait_running(namespace, 5)
    assert min(smallest) >= 4, "the budget admits one at a time"
    assert "RolledBack" not in phases(empty)
    assert len(bought(empty) - earlier) == 10, "five, and one instead of each"


def spare_node(scene: Scene, member: Member) -> tuple[str, str]:
    """Two nodes of which one is empty; the namespace, and the empty one."""
    kubectl, namespace = member.kubectl, scene.namespace()
    kubectl.apply(pool("m5.large", k=2))
    kubectl.apply(deployment("full", namespace, 2, "1500m"))
    member.wait_running(namespace, 2)
    kubectl("scale", "deployment", "full", "-n", namespace, "--replicas=1")
    member.wait_running(namespace, 1)
    (pod,) = member.pods(namespace, phase="Running")
    (spare,) = {node["metadata"]["name"] for node in kubectl.items("nodes")} - {pod["spec"]["nodeName"]}
    return namespace, spare


def test_a_node_whose_room_a_capacity_buffer_keeps_stays(scene: Scene, empty: Member) -> None:
    kubectl = empty.kubectl
    kubectl.apply(yaml.safe_load(BUFFERS.read_text()))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=120s")
    namespace, spare = spare_node(scene, empty)
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "headroom", "namespace": namespace},
        "template": {"metadata": {"labels": {"app": "kept"}}, "spec": {"containers": [container]}},
    }
    buffer = {
        "apiVersion": "autoscaling.x-k8s.io/v1beta1",
        "kind": "CapacityBuffer",
        "metadata": {"name": "headroom", "namespace": namespace},
        "spec": {"podTemplateRef": {"name": "headroom"}, "replicas": 1},
    }
    with applied(kubectl, template, buffer):
        assert reasons(empty)[spare] == "buffer_pods"
        assert planned(empty)["moves"] == []
    (move,) = planned(empty)["moves"]
    assert [source["name"] for source in move["nodes"]] == [spare]
    consolidator(scene, empty)
    wait_for("it went", lambda: len(kubectl.items("nodes")) == 1)
    empty.wait_running(namespace, 1)


def test_a_node_that_an_overlay_makes_cheap_is_not_replaced(scene: Scene, empty: Member) -> None:
    kubectl, namespace = empty.kubectl, scene.namespace()
    kubectl.apply(pool("m5.large", "m5.4xlarge", k=3))
    kubectl.apply(deployment("big", namespace, 1, "10"))
    empty.wait_running(namespace, 1)
    kubectl.apply(deployment("small", namespace, 1, "300m"))
    empty.wait_running(namespace, 2)
    kubectl("delete", "deployment", "big", "-n", namespace)
    empty.wait_running(namespace, 1)
    large = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.4xlarge"]}]
    overlay = {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "contract"},
        "spec": {"requirements": large, "priceAdjustment": "-99%"},
    }
    with applied(kubectl, overlay):
        assert planned(empty)["moves"] == []
        assert set(reasons(empty).values()) == {"not_cheaper"}
    (move,) = planned(empty)["moves"]
    assert move["kind"] == "replace"


def test_a_pod_with_an_allocated_resource_claim_holds_its_node(scene: Scene, empty: Member) -> None:
    kubectl = empty.kubectl
    namespace, spare = spare_node(scene, empty)
    device = {"name": "gpu-0"}
    objects: list[Object] = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "gpu"},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{spare}-gpus"},
            "spec": {
                "driver": DRIVER,
                "nodeName": spare,
                "pool": {"name": spare, "generation": 1, "resourceSliceCount": 1},
                "devices": [device],
            },
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "gpu", "namespace": namespace},
            "spec": {
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
            },
        },
    ]
    with applied(kubectl, *objects):
        claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        kubectl.apply(deployment("trainer", namespace, 1, "100m", resourceClaims=claims))
        empty.wait_running(namespace, 2)
        (trainer,) = [pod for pod in empty.pods(namespace) if pod["metadata"]["labels"]["app"] == "trainer"]
        assert trainer["spec"]["nodeName"] == spare
        (claim,) = kubectl.items("resourceclaims", "-n", namespace)
        assert claim["status"]["allocation"], "kube-scheduler gave it a device"
        assert spare in reasons(empty), "no other machine has a device"
        assert not any(
            source["name"] == spare for move in planned(empty)["moves"] for source in move["nodes"]
        )
        kubectl("delete", "deployment", "trainer", "-n", namespace)
        empty.wait_running(namespace, 1)
        assert [source["name"] for move in planned(empty)["moves"] for source in move["nodes"]] == [spare]
