"""A member without a single node attracts replicas, and real Karpenter launches what was foreseen."""

from collections.abc import Iterator

import pytest

from e2e.kubectl import wait_for
from e2e.member import Member, node_pool, without_nodes
from e2e.scene import Scene
from e2e.workloads import AGGREGATED, deployment, policy

OURS = "karpool-scheduler"
FUTURE = ("--node-capacity-providers=karpenter",)


@pytest.fixture
def empty(elastic: Member) -> Iterator[Member]:
    with without_nodes(elastic):
        yield elastic


def test_replicas_are_placed_and_karpenter_launches(scene: Scene, empty: Member) -> None:
    empty.kubectl.apply(node_pool(limits={"cpu": "16"}))
    scene.estimators("karpool", ["elastic"], FUTURE)
    scene.scheduler("karpool")
    namespace = scene.namespace()
    kubectl = scene.control.kubectl
    kubectl.apply(policy("all", namespace, ["elastic"], AGGREGATED, OURS))
    kubectl.apply(deployment("web", namespace, 6, "900m"))
    wait_for("web placed", lambda: "web-deployment" in scene.control.placements(namespace))
    assert scene.control.placements(namespace)["web-deployment"] == {"elastic": 6}
    empty.wait_running(namespace, 6)
    claims = empty.kubectl.items("nodeclaims")
    assert claims
    assert {pod["spec"]["nodeName"] for pod in empty.pods(namespace)} == {
        claim["status"]["nodeName"] for claim in claims
    }


def test_what_the_limits_do_not_admit_is_not_placed(scene: Scene, empty: Member) -> None:
    """Eight cores of limits hold four m5.large, and each of them two of these pods."""
    empty.kubectl.apply(node_pool(types=("m5.large",), limits={"cpu": "8"}))
    scene.estimators("karpool", ["elastic"], FUTURE)
    scene.scheduler("karpool")
    namespace = scene.namespace()
    kubectl = scene.control.kubectl
    kubectl.apply(policy("all", namespace, ["elastic"], AGGREGATED, OURS))
    kubectl.apply(deployment("nine", namespace, 9, "900m"))
    wait_for("nine refused", lambda: scene.control.refusal(namespace, "nine-deployment"))
    kubectl.apply(deployment("eight", namespace, 8, "900m"))
    wait_for("eight placed", lambda: "eight-deployment" in scene.control.placements(namespace))
    empty.wait_running(namespace, 8)
    assert len(empty.kubectl.items("nodeclaims")) == 4
