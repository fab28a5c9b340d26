"""`karpool scheduler` with Karmada's own estimators, beside Karmada's own scheduler."""

from e2e.kubectl import wait_for
from e2e.scene import OVERCOMMIT, Scene, series
from e2e.workloads import DYNAMIC, HELD_BACK, deployment, policy

OURS = "karpool-scheduler"
STOCK = "default-scheduler"


def test_both_schedulers_work_side_by_side_each_for_its_own(scene: Scene) -> None:
    scene.estimators("go", ["static"])
    scene.scheduler("go")
    scene.scheduler("karpool")
    placed = {}
    for name in (STOCK, OURS):
        namespace = scene.namespace()
        placed[name] = scene.place(namespace, series(namespace, (5, 3)), ["static"], DYNAMIC, name)
        recorded = {
            "karpool.dev/promises" in binding["metadata"].get("annotations", {})
            for binding in scene.control.kubectl.items("resourcebindings", "-n", namespace)
        }
        assert recorded == {name == OURS}
        scene.take_away(namespace)
    assert placed[OURS] == placed[STOCK]
    assert [sum(clusters.values()) for clusters in placed[OURS].values()] == [5, 3]


def test_a_go_estimator_takes_our_promises_off(scene: Scene) -> None:
    """Twelve cores; ten are promised to a workload whose pods nobody creates yet, so two are left."""
    scene.estimators("go", ["static"], [OVERCOMMIT])
    scene.scheduler("karpool")
    namespace = scene.namespace()
    kubectl = scene.control.kubectl
    kubectl.apply(policy("all", namespace, ["static"], DYNAMIC, OURS, **HELD_BACK))
    kubectl.apply(deployment("first", namespace, 10, "1"))
    wait_for("first placed", lambda: "first-deployment" in scene.control.placements(namespace))
    kubectl.apply(deployment("second", namespace, 3, "1"))
    refused = wait_for("second refused", lambda: scene.control.refusal(namespace, "second-deployment"))
    assert "second-deployment" not in scene.control.placements(namespace)
    kubectl.apply(deployment("third", namespace, 2, "1"))
    wait_for("third placed", lambda: "third-deployment" in scene.control.placements(namespace))
    assert refused["reason"] in ("Unschedulable", "NoClusterFit", "SchedulerError")
