"""delete, with finalizers and dependants, and wait."""

import time
from typing import Any

import pytest

from tests.kubectl.conftest import Kubectl, config, deployment, pod

pytestmark = pytest.mark.kubectl


def owned(name: str, owner: dict[str, Any], *, blocks: bool = True) -> dict[str, Any]:
    """A ReplicaSet that belongs to a deployment."""
    spec = deployment("web")["spec"]
    reference = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": blocks,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "ownerReferences": [reference]},
        "spec": {key: spec[key] for key in ("replicas", "selector", "template")},
    }


def gone(kubectl: Kubectl, *args: str) -> bool:
    """Whether an object disappears soon; garbage collection runs behind the answer."""
    deadline = time.monotonic() + 5
    while kubectl("get", *args, "--ignore-not-found", "-o", "name"):
        if time.monotonic() > deadline:
            return False
    return True


def test_delete_by_name_label_file_and_all(kubectl: Kubectl) -> None:
    for name in ("a", "b", "c", "d"):
        obj = config(name)
        obj["metadata"]["labels"] = {"letter": name, "test": "yes"}
        kubectl.apply(obj)

    assert kubectl("delete", "configmap", "a").startswith('configmap "a" deleted')
    kubectl("delete", "configmap", "-l", "letter=b")
    kubectl("delete", "-f", "-", stdin='{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}')
    assert kubectl("get", "configmap", "-l", "test", "-o", "name") == "configmap/d\n"
    kubectl("delete", "configmap", "--all")
    assert kubectl("get", "configmap", "-l", "test", "-o", "name") == ""
    assert "not found" in kubectl.fails("delete", "configmap", "a")


def test_a_finalizer_holds_an_object_until_it_is_removed(kubectl: Kubectl) -> None:
    held = config("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    kubectl.apply(held)

    assert "timed out" in kubectl.fails("delete", "configmap", "held", "--timeout=1s")
    assert "deletionTimestamp" in kubectl.json("configmap", "held")["metadata"]
    kubectl("patch", "configmap", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert gone(kubectl, "configmap", "held")


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_dependants_go_with_their_owner(kubectl: Kubectl, cascade: str) -> None:
    kubectl.apply(deployment("web"))
    kubectl.apply(owned("web-1", kubectl.json("deployment", "web")))

    kubectl("delete", "deployment", "web", f"--cascade={cascade}", "--timeout=10s")

    assert gone(kubectl, "replicaset", "web-1")


def test_orphans_stay_without_their_owner(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))
    kubectl.apply(owned("web-1", kubectl.json("deployment", "web")))

    kubectl("delete", "deployment", "web", "--cascade=orphan")

    assert gone(kubectl, "deployment", "web")
    assert "ownerReferences" not in kubectl.json("replicaset", "web-1")["metadata"]


def test_a_namespace_takes_its_contents_along(kubectl: Kubectl) -> None:
    kubectl.apply(config("settings"), pod("web"))

    kubectl("delete", "namespace", kubectl.namespace, "--timeout=20s")

    assert kubectl("get", "configmap,pod", "-o", "name") == ""
    assert "not found" in kubectl.fails("create", "configmap", "late")


def test_a_pod_can_be_deleted_at_once(kubectl: Kubectl, node: str) -> None:
    kubectl.apply(pod("web", nodeName=node))

    kubectl("delete", "pod", "web", "--grace-period=0", "--force")

    assert gone(kubectl, "pod", "web")


def test_wait_returns_when_the_condition_holds(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))
    path = f"/apis/apps/v1/namespaces/{kubectl.namespace}/deployments/web"
    available = {"type": "Available", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}

    early = kubectl.fails("wait", "deployment/web", "--for=condition=Available", "--timeout=1s")
    kubectl.server.wait_for_watch(path.removesuffix("/web"))
    with kubectl.popen("wait", "deployment/web", "--for=condition=Available", "--timeout=20s") as waiting:
        kubectl.server.wait_for_watch(path.removesuffix("/web"))
        kubectl.server.set_status(path, {"conditions": [available]})
        said, complaint = waiting.communicate(timeout=30)

    assert "timed out" in early
    assert said == "deployment.apps/web condition met\n", complaint


def test_wait_returns_when_the_object_is_gone(kubectl: Kubectl) -> None:
    kubectl.apply(config("settings"))
    path = f"/api/v1/namespaces/{kubectl.namespace}/configmaps"

    with kubectl.popen("wait", "configmap/settings", "--for=delete", "--timeout=20s") as waiting:
        kubectl.server.wait_for_watch(path)
        kubectl.server.send("DELETE", f"{path}/settings")
        said, complaint = waiting.communicate(timeout=30)

    assert "condition met" in said, complaint
    assert waiting.returncode == 0
