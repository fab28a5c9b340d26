"""What belongs to no namespace is placed as well, beside what Karmada's own scheduler places."""

import uuid
from collections.abc import Iterator

import pytest

from e2e.karmada import Karmada
from e2e.kubectl import Object, condition, wait_for
from e2e.scene import Scene

OURS, STOCK = "karpool-scheduler", "default-scheduler"
BOTH = ["elastic", "static"]


@pytest.fixture
def names(scene: Scene) -> Iterator[dict[str, str]]:
    """One cluster-wide object for each scheduler; gone afterwards, with what was made of it."""
    tail = uuid.uuid4().hex[:8]
    made = {OURS: f"e2e-ours-{tail}", STOCK: f"e2e-stock-{tail}"}
    yield made
    kubectl = scene.control.kubectl
    for name in made.values():
        kubectl("delete", "clusterpropagationpolicy,clusterrole", name, "--ignore-not-found", "--wait=false")


def role(name: str, *verbs: str) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": list(verbs)}],
    }


def cluster_policy(name: str, scheduler: str, clusters: list[str]) -> Object:
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": name}
    return {
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": "ClusterPropagationPolicy",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": scheduler,
            "resourceSelectors": [kind],
            "placement": {"clusterAffinity": {"clusterNames": clusters}},
        },
    }


def placed(control: Karmada, name: str) -> list[str]:
    """The clusters of a binding that was scheduled."""
    for binding in control.kubectl.items("clusterresourcebindings"):
        if binding["spec"]["resource"]["name"] == name and (
            condition(binding, "Scheduled").get("status") == "True"
        ):
            return sorted(each["name"] for each in binding["spec"].get("clusters") or ())
    return []


def test_cluster_wide_objects_reach_the_members_their_policy_names(
    scene: Scene, names: dict[str, str]
) -> None:
    control = scene.control
    scene.scheduler("go", asking=False)
    scene.scheduler("karpool", asking=False)
    for scheduler, name in names.items():
        control.kubectl.apply(role(name, "get"), cluster_policy(name, scheduler, BOTH))
    for name in names.values():
        wait_for(f"{name} placed", lambda wanted=name: placed(control, wanted) == BOTH)  # type: ignore[misc]
    for member in BOTH:
        for name in names.values():
            _wait_for_role(scene, member, name, there=True)

    name = names[OURS]
    control.kubectl.apply(cluster_policy(name, OURS, ["static"]))
    wait_for("one is left", lambda: placed(control, name) == ["static"])
    _wait_for_role(scene, "elastic", name, there=False)
    assert placed(control, names[STOCK]) == BOTH


def _wait_for_role(scene: Scene, member: str, name: str, *, there: bool) -> None:
    kubectl = scene.members[member].kubectl
    state = "there" if there else "gone"
    wait_for(
        f"{name} {state} in {member}",
        lambda: (kubectl.run("get", "clusterrole", name).returncode == 0) == there,
    )
