"""Unmodified karmada-scheduler and karmada-descheduler do the same with either estimator behind them.

Two members differ in what a sum does not show: three nodes of four cores, and two of three.
Workloads are placed and held back, so that each of them meets the same free room.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.kubectl import Object, wait_for
from e2e.member import Member, without_nodes
from e2e.scene import Make, Scene, series
from e2e.workloads import AGGREGATED, DYNAMIC, HELD_BACK, OF_A_POLICY, deployment, node, policy

BOTH = ["static", "elastic"]
MAKES: tuple[Make, ...] = ("go", "karpool")
# By default the scheduler guesses from models of nodes as well, and takes the smaller number.
NO_MODELS = "CustomizedClusterResourceModeling=false"
SETS = f"--feature-gates={NO_MODELS},MultiplePodTemplatesScheduling=true"


@pytest.fixture
def two(scene: Scene, elastic: Member) -> Iterator[Scene]:
    """The second member has two nodes that are nobody's, and Karmada knows of them."""
    with without_nodes(elastic):
        elastic.kubectl.apply(*(node(f"fixed-{i}", "3") for i in range(2)))
        wait_for("the sum is known", lambda: cores(scene, "elastic") == "6")
        yield scene


def cores(scene: Scene, cluster: str) -> str:
    summary = scene.control.kubectl.get("cluster", cluster)["status"].get("resourceSummary", {})
    return str(summary.get("allocatable", {}).get("cpu", ""))


@pytest.mark.parametrize("scheduling", [DYNAMIC, AGGREGATED], ids=["dynamic", "aggregated"])
def test_placements_are_those_with_karmadas_own_estimator(two: Scene, scheduling: Object) -> None:
    """Of 1.5 cores two fit on every node: six and four, where the sums say eight and four."""
    placed = {}
    for make in MAKES:
        estimators = two.estimators(make, BOTH)
        stock = two.scheduler("go", [f"--feature-gates={NO_MODELS}"])
        namespace = two.namespace()
        workloads = series(namespace, (7, 3, 1, 10), "1500m")
        placed[make] = two.place(namespace, workloads, BOTH, scheduling, "default-scheduler", **HELD_BACK)
        two.take_away(namespace)
        stock.stop()
        for estimator in estimators.values():
            estimator.stop()
    assert placed["karpool"] == placed["go"]
    few = {"static": 2, "elastic": 1} if scheduling is DYNAMIC else {"static": 3}
    assert placed["go"]["w0-deployment"] == {"static": 4, "elastic": 3}
    assert placed["go"]["w1-deployment"] == few
    assert placed["go"]["w3-deployment"] == {"static": 6, "elastic": 4}


def sets(name: str, namespace: str, *components: Object) -> Object:
    """A binding of a workload with several kinds of pods, for one cluster."""
    one = {"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}
    resource = {"apiVersion": "batch/v1", "kind": "Job"}  # any kind that every member has
    return {
        "apiVersion": "work.karmada.io/v1alpha2",
        "kind": "ResourceBinding",
        "metadata": {"name": name, "namespace": namespace, "labels": OF_A_POLICY},
        "spec": {
            "resource": {**resource, "name": name, "namespace": namespace},
            "schedulerName": "default-scheduler",
            "components": list(components),
            "placement": {"clusterAffinity": {"clusterNames": BOTH}, "spreadConstraints": [one]},
            **HELD_BACK,
        },
    }


def part(name: str, replicas: int, cpu: str, **claim: Any) -> Object:
    requirements = {"resourceRequest": {"cpu": cpu}, **({"nodeClaim": claim} if claim else {})}
    return {"name": name, "replicas": replicas, "replicaRequirements": requirements}


def test_sets_of_components_go_where_a_whole_one_fits(two: Scene) -> None:
    """The first needs nodes of four cores, the second a node of the other member."""
    found: dict[Make, Any] = {}
    control = two.control
    for make in MAKES:
        estimators = two.estimators(make, BOTH)
        stock = two.scheduler("go", [SETS])
        namespace = two.namespace()
        there = {"nodeSelector": {"kubernetes.io/hostname": "fixed-1"}}
        control.kubectl.apply(
            sets("big", namespace, part("a", 1, "3500m"), part("b", 1, "500m")),
            sets("there", namespace, part("a", 1, "1", **there), part("b", 2, "1")),
        )
        wait_for("both placed", lambda: len(control.placements(namespace)) == 2)  # noqa: B023
        found[make] = control.placements(namespace)
        control.kubectl("delete", "resourcebindings", "--all", "-n", namespace)
        stock.stop()
        for estimator in estimators.values():
            estimator.stop()
    assert found["karpool"] == found["go"] == {"big": {"static": 0}, "there": {"elastic": 0}}


@pytest.mark.parametrize(("descheduler", "estimators"), [("go", "karpool"), ("karpool", "go")])
def test_replicas_that_cannot_start_are_taken_back(two: Scene, descheduler: Make, estimators: Make) -> None:
    """By the sum one of 3.5 cores would fit into the second member; it does on none of its nodes."""
    two.estimators(estimators, BOTH)
    two.scheduler("go", [f"--feature-gates={NO_MODELS}"], asking=False)
    namespace = two.namespace()
    control = two.control
    control.kubectl.apply(policy("all", namespace, BOTH, DYNAMIC))
    control.kubectl.apply(deployment("web", namespace, 3, "3500m"))
    first = wait_for("web placed", lambda: control.placements(namespace).get("web-deployment")) or {}
    assert first == {"static": 2, "elastic": 1}
    two.descheduler(descheduler, ["--unschedulable-threshold=3s", "--descheduling-interval=2s"])
    two.members["static"].wait_running(namespace, 3)
    wait_for("moved", lambda: control.placements(namespace)["web-deployment"] == {"static": 3})
