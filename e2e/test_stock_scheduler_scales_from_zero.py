"""An unmodified karmada-scheduler fills a member without nodes, once its summary shows what could come.

Alone it cannot: it takes the smaller of an estimate and what it divides from the summary in the status of the
Cluster, and Karmada's status controller sums up nodes that are there.
"""

from collections.abc import Iterator

import pytest

from e2e.components import karpool_command
from e2e.karmada import controllers
from e2e.kubectl import wait_for
from e2e.member import Member, node_pool, without_nodes
from e2e.processes import Program, answers, free_port
from e2e.scene import Scene
from e2e.workloads import AGGREGATED, deployment, policy

STOCK = "default-scheduler"
FUTURE = ("--node-capacity-providers=karpenter",)
NO_MODELING = "--enable-cluster-resource-modeling=false"


@pytest.fixture
def empty(elastic: Member) -> Iterator[Member]:
    with without_nodes(elastic):
        elastic.kubectl.apply(node_pool(types=("m5.large",), limits={"cpu": "8"}))
        yield elastic


def summary_writer(scene: Scene) -> Program:
    health = free_port()
    program = Program(
        "karpool cluster-summary",
        karpool_command(
            "cluster-summary",
            f"--kubeconfig={scene.control.server.kubeconfig('cluster-summary')}",
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            "--scheduler-estimator-timeout=30s",
            "--interval=1s",
            "--withdraw-after=3s",
            *scene.pki.client_flags(),
        ),
        scene.logs / "cluster-summary.log",
    )
    scene.running.callback(program.stop)
    program.wait_until(answers(f"http://127.0.0.1:{health}/readyz"))
    return program


def cores(scene: Scene) -> str:
    summary = scene.control.kubectl.get("cluster", "elastic")["status"].get("resourceSummary") or {}
    return str((summary.get("allocatable") or {}).get("cpu", ""))


@pytest.fixture
def without_modeling(scene: Scene) -> Iterator[Scene]:
    """Karmada's controllers as the docs say: they leave the summary to others."""
    control, built = scene.control, scene.peers["karmada"]
    if control.controllers is None:
        pytest.skip("a fleet that was left standing keeps its controllers")
    control.controllers.stop()
    control.controllers = controllers(built, control.server, [NO_MODELING])
    try:
        yield scene
    finally:
        control.controllers.stop()
        control.controllers = controllers(built, control.server)


def test_without_the_companion_it_places_nothing_there(scene: Scene, empty: Member) -> None:
    scene.estimators("karpool", ["elastic"], FUTURE)
    scene.scheduler("go")
    namespace = scene.namespace()
    scene.control.kubectl.apply(policy("all", namespace, ["elastic"], AGGREGATED, STOCK))
    scene.control.kubectl.apply(deployment("web", namespace, 1, "900m"))
    refusal = wait_for("web refused", lambda: scene.control.refusal(namespace, "web-deployment"))
    assert "available replicas 0 are not enough" in (refusal or {})["message"]


def test_with_the_companion_it_fills_what_limits_admit_and_no_more(
    without_modeling: Scene, empty: Member
) -> None:
    """Eight cores of limits hold four m5.large with two of these pods each: the estimate stays exact."""
    scene, control = without_modeling, without_modeling.control
    estimators = scene.estimators("karpool", ["elastic"], FUTURE)
    scene.scheduler("go")
    writer = summary_writer(scene)
    wait_for("limits are in the summary", lambda: cores(scene) not in ("", "0"))
    namespace = scene.namespace()
    control.kubectl.apply(policy("all", namespace, ["elastic"], AGGREGATED, STOCK))
    control.kubectl.apply(deployment("nine", namespace, 9, "900m"))
    refusal = wait_for("nine refused", lambda: control.refusal(namespace, "nine-deployment"))
    assert "available replicas 8 are not enough" in (refusal or {})["message"]
    control.kubectl("delete", "deployment", "nine", "-n", namespace)
    control.kubectl.apply(deployment("eight", namespace, 8, "900m"))
    wait_for("eight placed", lambda: "eight-deployment" in control.placements(namespace))
    empty.wait_running(namespace, 8)
    assert len(empty.kubectl.items("nodeclaims")) == 4
    assert "writes this field too" not in writer.text()
    control.kubectl("delete", "deployment", "eight", "-n", namespace)
    empty.kubectl("delete", "nodepools", "--all", "--timeout=120s")
    wait_for("pools are gone from the summary", lambda: cores(scene) in ("", "0"))
    empty.kubectl.apply(node_pool(types=("m5.large",), limits={"cpu": "8"}))
    wait_for("the pool is back in the summary", lambda: cores(scene) not in ("", "0"))
    estimators["elastic"].stop()
    wait_for("what nobody vouches for is taken back", lambda: cores(scene) in ("", "0"))


def test_it_works_beside_karmadas_own_writer_and_says_what_is_better(scene: Scene, empty: Member) -> None:
    """Default flags: the status controller takes the summary back at every look, and it is written again."""
    scene.estimators("karpool", ["elastic"], FUTURE)
    scene.scheduler("go")
    writer = summary_writer(scene)
    namespace = scene.namespace()
    scene.control.kubectl.apply(policy("all", namespace, ["elastic"], AGGREGATED, STOCK))
    scene.control.kubectl.apply(deployment("web", namespace, 4, "900m"))
    wait_for("web placed", lambda: "web-deployment" in scene.control.placements(namespace))
    empty.wait_running(namespace, 4)
    wait_for("told", lambda: NO_MODELING in writer.text())
