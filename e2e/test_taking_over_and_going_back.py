"""A fleet goes over to Karpool's scheduler, and back, under the name of Karmada's own.

Neither moves what the other placed, and each goes on from there. This is as much of an upgrade
and a downgrade as can be run while there is one release: what is written stays readable.
"""

from e2e.kubectl import Object, wait_for
from e2e.scene import Make, Scene
from e2e.workloads import DYNAMIC, HELD_BACK, deployment, policy

STOCK = "default-scheduler"


def test_neither_scheduler_moves_what_the_other_placed(scene: Scene) -> None:
    scene.estimators("karpool", ["static"])
    namespace = scene.namespace()
    kubectl = scene.control.kubectl
    kubectl.apply(policy("all", namespace, ["static"], DYNAMIC, **HELD_BACK))
    turns: tuple[Make, ...] = ("go", "karpool", "go")
    for size, make in enumerate(turns, 1):
        flags = [f"--scheduler-name={STOCK}"]
        before = _targets(scene, namespace)
        program = scene.scheduler(make, flags)
        kubectl.apply(deployment(f"new-{size}", namespace, size, "100m"))
        wait_for(f"new-{size} placed", lambda: len(scene.control.placements(namespace)) == size)  # noqa: B023
        found = _targets(scene, namespace)
        assert {name: found[name] for name in before} == before
        kubectl.apply(deployment("new-1", namespace, size + 4, "100m"))
        wait_for("the first grew", lambda: _placed(scene, namespace) == size + 4)  # noqa: B023
        program.stop()


def _targets(scene: Scene, namespace: str) -> dict[str, tuple[int, list[Object]]]:
    """By binding: how often anybody changed what is wanted, and where it is to run."""
    return {
        each["metadata"]["name"]: (each["metadata"]["generation"], each["spec"]["clusters"])
        for each in scene.control.kubectl.items("resourcebindings", "-n", namespace)
    }


def _placed(scene: Scene, namespace: str) -> int:
    return scene.control.placements(namespace).get("new-1-deployment", {}).get("static", 0)
