"""get, in its forms, and describe."""

import json

import pytest
import yaml

from tests.kubectl.conftest import Kubectl, config, deployment, pod

pytestmark = pytest.mark.kubectl


def run_on(kubectl: Kubectl, name: str, node: str) -> None:
    """Play scheduler and kubelet for a pod."""
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{name}"
    target = {"target": {"apiVersion": "v1", "kind": "Node", "name": node}, "metadata": {"name": name}}
    kubectl.server.send("POST", f"{path}/binding", {"apiVersion": "v1", "kind": "Binding", **target})
    started = "2026-01-01T00:00:00Z"
    status = {
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "image": "nginx:1.25",
        "imageID": "",
        "state": {"running": {"startedAt": started}},
    }
    ready = {"type": "Ready", "status": "True"}
    kubectl.server.set_status(
        path,
        {
            "phase": "Running",
            "podIP": "10.1.0.5",
            "podIPs": [{"ip": "10.1.0.5"}],
            "startTime": started,
            "conditions": [ready],
            "containerStatuses": [status],
        },
    )


def test_pods_have_the_columns_people_know(kubectl: Kubectl, node: str) -> None:
    kubectl.apply(pod("web"), pod("idle"))
    run_on(kubectl, "web", node)

    header, idle, web = kubectl.rows("get", "pods", "-o", "wide")

    assert header[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert header[5:] == ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    assert idle[:4] == ["idle", "0/1", "Pending", "0"]
    assert web[:4] == ["web", "1/1", "Running", "0"]
    assert web[5:] == ["10.1.0.5", node, "<none>", "<none>"]


def test_nodes_have_the_columns_people_know(kubectl: Kubectl, node: str) -> None:
    header, row = kubectl.rows("get", "node", node, "-o", "wide")

    assert header[:5] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert [*row[:3], row[4], row[5], row[7]] == [node, "Ready", "worker", "v1.34.0", "10.0.0.7", "Test OS"]


def test_deployments_have_the_columns_people_know(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))

    header, row = kubectl.rows("get", "deployments", "-o", "wide")

    assert header == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"]
    assert [*row[:4], *row[5:]] == ["web", "0/2", "0", "0", "main", "nginx:1.25", "app=web"]


def test_every_output_form_shows_the_same_object(kubectl: Kubectl) -> None:
    kubectl.apply(config("settings", mode="fast"))
    get = ("get", "configmap", "settings")

    assert kubectl(*get, "-o", "name") == "configmap/settings\n"
    assert json.loads(kubectl(*get, "-o", "json"))["data"] == {"mode": "fast"}
    assert yaml.safe_load(kubectl(*get, "-o", "yaml"))["data"] == {"mode": "fast"}
    assert kubectl(*get, "-o", "jsonpath={.data.mode}") == "fast"
    assert kubectl(*get, "-o", "go-template={{.data.mode}}") == "fast"
    columns = kubectl.rows(*get, "-o", "custom-columns=WHO:.metadata.name,MODE:.data.mode")
    assert columns == [["WHO", "MODE"], ["settings", "fast"]]


def test_selectors_and_all_namespaces(kubectl: Kubectl, any_namespace: Kubectl) -> None:
    kubectl.apply(pod("a", labels={"tier": kubectl.namespace}), pod("b", labels={"tier": "other"}))

    by_label = kubectl("get", "pods", "-l", f"tier in ({kubectl.namespace})", "-o", "name")
    by_field = kubectl(
        "get", "pods", "--field-selector", "metadata.name!=a,status.phase=Pending", "-o", "name"
    )
    everywhere = any_namespace.rows("get", "pods", "-A", "-l", f"tier={kubectl.namespace}")
    shown = kubectl.rows("get", "pods", "a", "--show-labels", "--no-headers")

    assert by_label == "pod/a\n"
    assert by_field == "pod/b\n"
    assert everywhere[0][:2] == ["NAMESPACE", "NAME"]
    assert everywhere[1][:2] == [kubectl.namespace, "a"]
    assert shown[0][-1] == f"tier={kubectl.namespace}"


def test_pages_add_up_to_the_whole_list(kubectl: Kubectl) -> None:
    kubectl.apply(*(config(f"c{index}") for index in range(7)))

    names = kubectl("get", "configmaps", "--chunk-size=2", "-o", "name").split()

    assert [name for name in names if name.startswith("configmap/c")] == [
        f"configmap/c{index}" for index in range(7)
    ]


def test_sorting_and_several_kinds_at_once(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web", replicas=3), deployment("api", replicas=1), pod("lone"))

    ordered = kubectl("get", "deploy", "--sort-by=.spec.replicas", "-o", "name").split()
    everything = kubectl("get", "all", "-o", "name").split()

    assert ordered == ["deployment.apps/api", "deployment.apps/web"]
    assert {"pod/lone", "deployment.apps/web"} <= set(everything)


def test_a_missing_object_is_reported_as_not_found(kubectl: Kubectl) -> None:
    assert 'pods "nobody" not found' in kubectl.fails("get", "pod", "nobody")
    assert kubectl("get", "pod", "nobody", "--ignore-not-found") == ""
    assert "the server doesn't have a resource type" in kubectl.fails("get", "nonsense")


def test_describe_tells_the_story_of_a_pod(kubectl: Kubectl, node: str) -> None:
    kubectl.apply(pod("web", labels={"app": "web"}, nodeSelector={"zone": "a"}))
    run_on(kubectl, "web", node)
    uid = kubectl.json("pod", "web")["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.1", "namespace": kubectl.namespace},
        "involvedObject": {"kind": "Pod", "namespace": kubectl.namespace, "name": "web", "uid": uid},
        "reason": "Scheduled",
        "message": "placed by hand",
        "type": "Normal",
        "source": {"component": "tests"},
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    kubectl.server.send("POST", f"/api/v1/namespaces/{kubectl.namespace}/events", event)

    text = kubectl("describe", "pod", "web")

    shown = " ".join(text.split())
    for fact in (
        f"Node: {node}",
        "Status: Running",
        "IP: 10.1.0.5",
        "Image: nginx:1.25",
        "zone=a",
        "placed by hand",
    ):
        assert fact in shown


def test_describe_a_node_counts_its_pods(kubectl: Kubectl, node: str) -> None:
    kubectl.apply(
        pod("web", containers=[{"name": "main", "image": "x", "resources": {"requests": {"cpu": 1}}}])
    )
    run_on(kubectl, "web", node)

    text = kubectl("describe", "node", node)

    assert "Non-terminated Pods:          (1 in total)" in text
    assert "1 (25%)" in text


def test_describe_a_deployment(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))

    text = kubectl("describe", "deployment", "web")

    assert "2 desired | 0 updated" in text
    assert "25% max unavailable, 25% max surge" in text


def test_events_are_listed_as_a_table(kubectl: Kubectl) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "x.1", "namespace": kubectl.namespace},
        "involvedObject": {"kind": "Node", "name": "n1"},
        "reason": "Rebooted",
        "message": "it came back",
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    kubectl.server.send("POST", f"/api/v1/namespaces/{kubectl.namespace}/events", event)

    header, row = kubectl.rows("get", "events")

    assert header == ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert row[1:] == ["Warning", "Rebooted", "node/n1", "it came back"]
    if kubectl.minor >= 26:
        assert "it came back" in kubectl("events", "--types=Warning")
