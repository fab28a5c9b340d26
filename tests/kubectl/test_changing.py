"""Imperative changes: generators, label, annotate, patch, scale, set, edit, replace, expose."""

import json
from pathlib import Path

import pytest
import yaml

from tests.kubectl.conftest import Kubectl, config, deployment, pod

pytestmark = pytest.mark.kubectl


@pytest.mark.long
def test_generators_create_what_they_say(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=nginx:1.25", "--replicas=3")
    kubectl("create", "configmap", "settings", "--from-literal=mode=fast")
    kubectl("create", "secret", "generic", "key", "--from-literal=password=hush")
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "quota", "small", "--hard=cpu=1,pods=2")
    kubectl("create", "job", "once", "--image=busybox")
    kubectl("create", "role", "reader", "--verb=get", "--resource=pods")
    kubectl("run", "lone", "--image=nginx", "--labels=app=lone", "--port=80")
    kubectl("expose", "pod", "lone", "--port=80", "--name=lone")

    assert kubectl.json("deployment", "web")["spec"]["replicas"] == 3
    assert kubectl.json("configmap", "settings")["data"] == {"mode": "fast"}
    assert kubectl.json("secret", "key")["data"] == {"password": "aHVzaA=="}
    assert kubectl.json("service", "lone")["spec"]["selector"] == {"app": "lone"}
    assert kubectl.rows("get", "svc", "lone")[1][1] == "ClusterIP"


@pytest.mark.long
def test_a_priority_class_and_a_disruption_budget_can_be_generated(kubectl: Kubectl) -> None:
    kubectl("create", "priorityclass", f"high-{kubectl.namespace}", "--value=1000")
    assert kubectl.rows("get", "priorityclass", f"high-{kubectl.namespace}")[1][1] == "1000"

    if kubectl.minor >= 21:  # older ones generate policy/v1beta1
        kubectl("create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=1")
        assert kubectl.rows("get", "pdb")[1][:4] == ["web", "1", "N/A", "0"]


def test_labels_and_annotations_come_and_go(kubectl: Kubectl) -> None:
    kubectl.apply(config("settings"))

    kubectl("label", "configmap", "settings", "tier=front", "team=a")
    assert "already has a value" in kubectl.fails("label", "configmap", "settings", "tier=back")
    kubectl("label", "configmap", "settings", "tier=back", "--overwrite")
    kubectl("label", "configmap", "settings", "team-")
    kubectl("annotate", "configmap", "settings", "note=hello world")

    metadata = kubectl.json("configmap", "settings")["metadata"]
    assert metadata["labels"] == {"tier": "back"}
    assert metadata["annotations"]["note"] == "hello world"


def test_every_patch_type_changes_what_it_names(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))
    containers = [{"name": "main", "env": [{"name": "A", "value": "1"}]}, {"name": "side", "image": "envoy"}]

    strategic = {"spec": {"template": {"spec": {"containers": containers}}}}
    kubectl("patch", "deployment", "web", "--patch", json.dumps(strategic))
    kubectl("patch", "deployment", "web", "--type=merge", "--patch", '{"spec":{"replicas":5}}')
    pointer = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "nginx:2"}]
    kubectl("patch", "deployment", "web", "--type=json", "--patch", json.dumps(pointer))

    spec = kubectl.json("deployment", "web")["spec"]
    found = {item["name"]: item for item in spec["template"]["spec"]["containers"]}
    assert spec["replicas"] == 5
    assert found["main"]["image"] == "nginx:2"
    assert found["main"]["env"] == [{"name": "A", "value": "1"}]
    assert found["side"]["image"] == "envoy"


def test_a_patch_that_breaks_the_schema_is_refused_by_field(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))

    complaint = kubectl.fails("patch", "deployment", "web", "-p", '{"spec":{"replicas":-1}}')

    assert "spec.replicas" in complaint
    assert "Invalid value: -1" in complaint


@pytest.mark.long
def test_status_is_written_through_its_subresource_only(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web", replicas=2))
    path = f"/apis/apps/v1/namespaces/{kubectl.namespace}/deployments/web"
    changed = json.loads(kubectl("get", "--raw", path))
    changed["status"] = {"readyReplicas": 1, "replicas": 2}
    changed["spec"]["replicas"] = 9

    kubectl("replace", "--raw", f"{path}/status", "-f", "-", stdin=json.dumps(changed))

    assert kubectl.rows("get", "deployment", "web")[1][1] == "1/2"
    if kubectl.minor >= 24:
        patch = '{"status":{"readyReplicas":2},"spec":{"replicas":9}}'
        kubectl("patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", patch)
        assert kubectl.rows("get", "deployment", "web")[1][1] == "2/2"


def test_scale_changes_replicas_under_a_precondition(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web", replicas=2))

    kubectl("scale", "deployment", "web", "--replicas=4")
    refusal = kubectl.fails("scale", "deployment", "web", "--current-replicas=2", "--replicas=9")

    assert "expected replicas to be 2, was 4" in refusal.lower()
    assert kubectl.json("deployment", "web")["spec"]["replicas"] == 4


def test_set_changes_images_resources_and_environment(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))

    kubectl("set", "image", "deployment/web", "main=nginx:1.27")
    kubectl("set", "resources", "deployment/web", "--requests=cpu=100m", "--limits=memory=1Gi")
    kubectl("set", "env", "deployment/web", "MODE=fast")

    (main,) = kubectl.json("deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert main["image"] == "nginx:1.27"
    assert main["resources"]["requests"] == {"cpu": "100m", "memory": "1Gi"} or main["resources"][
        "requests"
    ] == {"cpu": "100m"}
    assert main["env"] == [{"name": "MODE", "value": "fast"}]


def test_rollout_follows_a_deployment(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web", replicas=2))
    path = f"/apis/apps/v1/namespaces/{kubectl.namespace}/deployments/web"
    done = {
        "observedGeneration": 1,
        "replicas": 2,
        "updatedReplicas": 2,
        "availableReplicas": 2,
        "readyReplicas": 2,
    }

    waiting = kubectl("rollout", "status", "deployment/web", "--watch=false")
    kubectl.server.set_status(path, done)
    finished = kubectl("rollout", "status", "deployment/web", "--timeout=5s")

    assert "Waiting for deployment" in waiting
    assert "successfully rolled out" in finished
    kubectl("rollout", "pause", "deployment/web")
    kubectl("rollout", "resume", "deployment/web")
    kubectl("rollout", "restart", "deployment/web")
    annotations = kubectl.json("deployment", "web")["spec"]["template"]["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/restartedAt" in annotations
    assert "deployment.apps/web" in kubectl("rollout", "history", "deployment/web")


def test_edit_writes_back_what_the_editor_left(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.apply(config("settings", mode="slow"))
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/slow/fast/ "$1"\n')
    editor.chmod(0o755)

    kubectl("edit", "configmap", "settings", env={"KUBE_EDITOR": str(editor)})

    assert kubectl.json("configmap", "settings")["data"] == {"mode": "fast"}


def test_replace_needs_the_version_it_read(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "settings", "--from-literal=mode=slow")
    read = yaml.safe_load(kubectl("get", "configmap", "settings", "-o", "yaml"))
    read["data"] = {"mode": "fast"}

    kubectl("replace", "-f", "-", stdin=yaml.safe_dump(read))
    conflict = kubectl.fails("replace", "-f", "-", stdin=yaml.safe_dump(read | {"data": {"mode": "late"}}))

    assert kubectl.json("configmap", "settings")["data"] == {"mode": "fast"}
    assert "the object has been modified" in conflict


def test_replace_force_makes_a_new_object(kubectl: Kubectl) -> None:
    kubectl.apply(pod("web"))
    before = kubectl.json("pod", "web")["metadata"]["uid"]
    other = pod("web", containers=[{"name": "main", "image": "nginx:2"}])

    kubectl("replace", "--force", "--grace-period=0", "-f", "-", stdin=yaml.safe_dump(other))

    after = kubectl.json("pod", "web")
    assert after["metadata"]["uid"] != before
    assert after["spec"]["containers"][0]["image"] == "nginx:2"


def test_creating_twice_says_already_exists(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "settings")

    assert 'configmaps "settings" already exists' in kubectl.fails("create", "configmap", "settings")


def test_a_pod_without_image_or_with_unknown_fields_is_refused(kubectl: Kubectl) -> None:
    typo = pod("web")
    typo["spec"]["contaners"] = []

    assert "contaners" in kubectl.fails("create", "-f", "-", stdin=yaml.safe_dump(typo))
    wrong = pod("web", containers=[{"name": "Main", "image": "x"}])
    assert "spec.containers[0].name" in kubectl.fails("create", "-f", "-", stdin=yaml.safe_dump(wrong))


@pytest.mark.long
def test_dry_run_on_the_server_changes_nothing(kubectl: Kubectl) -> None:
    made = kubectl("create", "configmap", "settings", "--dry-run=server", "-o", "name")
    kubectl.apply(deployment("web"))
    kubectl("scale", "deployment", "web", "--replicas=7", "--dry-run=server")
    kubectl("label", "deployment", "web", "a=b", "--dry-run=server")
    kubectl("delete", "deployment", "web", "--dry-run=server")

    assert made == "configmap/settings\n"
    assert "not found" in kubectl.fails("get", "configmap", "settings")
    assert kubectl.json("deployment", "web")["spec"]["replicas"] == 2
    assert "labels" not in kubectl.json("deployment", "web")["metadata"]
