"""Many workloads at once, a scheduler killed in the middle: nobody is given what is not there."""

from collections.abc import Iterator

import pytest

from e2e.kubectl import wait_for
from e2e.member import Member, node_pool, without_nodes
from e2e.scene import OVERCOMMIT, Make, Scene
from e2e.workloads import AGGREGATED, deployment, policy

OURS = "karpool-scheduler"


@pytest.fixture
def empty(elastic: Member) -> Iterator[Member]:
    with without_nodes(elastic):
        yield elastic


@pytest.mark.parametrize("make", ["karpool", "go"])
def test_existing_nodes_are_given_away_once(scene: Scene, static: Member, make: Make) -> None:
    """Three machines of four cores hold 24 halves; fourteen workloads ask for three halves each."""
    scene.estimators(make, ["static"], [OVERCOMMIT])
    namespace = scene.namespace()
    placed = _burst(scene, namespace, ["static"], 14)
    assert placed == 8
    static.wait_running(namespace, 24)


def test_nodes_that_are_still_to_come_are_given_away_once(scene: Scene, empty: Member) -> None:
    """Four m5.large of three halves each: twelve, which is four workloads.

    Nodes are limited, not cores: kwok's nodes report as capacity only what was asked of them, so
    that Karpenter, and we, see some of a limit on cores come back once they are there.
    """
    empty.kubectl.apply(node_pool(types=("m5.large",), limits={"nodes": "4"}))
    scene.estimators("karpool", ["elastic"], [OVERCOMMIT, "--node-capacity-providers=karpenter"])
    namespace = scene.namespace()
    placed = _burst(scene, namespace, ["elastic"], 8)
    assert placed == 4
    empty.wait_running(namespace, 12)
    assert len(empty.kubectl.items("nodeclaims")) == 4


def _burst(scene: Scene, namespace: str, clusters: list[str], workloads: int) -> int:
    """All at once; the scheduler dies with some of them placed. How many were placed in the end."""
    kubectl = scene.control.kubectl
    first = scene.scheduler("karpool")
    kubectl.apply(policy("all", namespace, clusters, AGGREGATED, OURS))
    kubectl.apply(*(deployment(f"w{i}", namespace, 3, "500m") for i in range(workloads)))
    wait_for("the first placed", lambda: scene.control.placements(namespace), every=0.01)
    first.kill()
    scene.scheduler("karpool")

    def settled() -> bool:
        bindings = kubectl.items("resourcebindings", "-n", namespace)
        names = [each["metadata"]["name"] for each in bindings]
        done = scene.control.placements(namespace)
        refused = [name for name in names if name not in done and scene.control.refusal(namespace, name)]
        return len(done) + len(refused) == workloads

    wait_for("every workload placed or refused", settled)
    return len(scene.control.placements(namespace))
