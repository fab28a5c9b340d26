"""cordon, taint and drain."""

import pytest

from tests.kubectl.conftest import Kubectl, pod

pytestmark = pytest.mark.kubectl


def test_cordon_and_uncordon(kubectl: Kubectl, node: str) -> None:
    assert kubectl("cordon", node) == f"node/{node} cordoned\n"
    assert kubectl.rows("get", "node", node)[1][1] == "Ready,SchedulingDisabled"
    assert kubectl("uncordon", node) == f"node/{node} uncordoned\n"
    assert kubectl.rows("get", "node", node)[1][1] == "Ready"


def test_taints_come_and_go(kubectl: Kubectl, node: str) -> None:
    kubectl("taint", "node", node, "gpu=yes:NoSchedule", "old=:NoExecute")
    kubectl("taint", "node", node, "old-")
    kubectl("taint", "node", node, "gpu=no:NoSchedule", "--overwrite")

    assert kubectl.json("node", node)["spec"]["taints"] == [
        {"key": "gpu", "value": "no", "effect": "NoSchedule"}
    ]


@pytest.mark.long
def test_drain_waits_for_the_budget_and_then_evicts(kubectl: Kubectl, node: str) -> None:
    kubectl.apply(*(pod(f"web-{index}", labels={"app": "web"}, nodeName=node) for index in range(2)))
    for index in range(2):
        make_ready(kubectl, f"web-{index}")
    kubectl.apply(budget(2))

    flags = ("--force", "--ignore-daemonsets", "--delete-emptydir-data")
    if kubectl.minor < 20:
        flags = ("--force", "--ignore-daemonsets", "--delete-local-data")
    blocked = kubectl.fails("drain", node, *flags, "--timeout=2s")
    still_there = kubectl("get", "pods", "-o", "name").split()
    kubectl.apply(budget(0))
    drained = kubectl("drain", node, *flags, "--timeout=20s", "--grace-period=0")

    assert "disruption budget" in blocked
    assert still_there == ["pod/web-0", "pod/web-1"]
    assert "drained" in drained or "evicted" in drained
    assert kubectl("get", "pods", "-o", "name") == ""


def test_drain_refuses_pods_that_nobody_would_replace(kubectl: Kubectl, node: str) -> None:
    kubectl.apply(pod("lone", nodeName=node))

    complaint = kubectl.fails("drain", node, "--ignore-daemonsets")

    assert "--force" in complaint
    assert kubectl.json("pod", "lone")["metadata"].get("deletionTimestamp") is None


def make_ready(kubectl: Kubectl, name: str) -> None:
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{name}"
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kubectl.server.set_status(path, {"phase": "Running", "conditions": [condition]})


def budget(min_available: int) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": "web"}}},
    }
