"""What the server says about itself: versions, resources, fields, permissions."""

import json

import pytest

from tests.kubectl.conftest import Kubectl

pytestmark = pytest.mark.kubectl


def test_api_resources_list_names_scopes_and_verbs(any_namespace: Kubectl, kubectl: Kubectl) -> None:
    rows = {row.split()[0]: row.split() for row in kubectl("api-resources", "--no-headers").splitlines()}

    assert rows["pods"] == ["pods", "po", "v1", "true", "Pod"]
    assert rows["nodes"] == ["nodes", "no", "v1", "false", "Node"]
    assert rows["deployments"] == ["deployments", "deploy", "apps/v1", "true", "Deployment"]
    assert rows["horizontalpodautoscalers"][2] == "autoscaling/v2"
    listed = kubectl("api-resources", "--api-group=policy", "-o", "name", "--verbs=watch").split()
    assert listed == ["poddisruptionbudgets.policy"]


def test_api_versions_are_complete(kubectl: Kubectl) -> None:
    versions = kubectl("api-versions").split()

    assert {"v1", "apps/v1", "batch/v1", "policy/v1", "autoscaling/v1", "autoscaling/v2"} <= set(versions)
    assert versions == sorted(versions)


@pytest.mark.parametrize("name", ["po", "pod", "pods", "deploy", "sts", "pdb", "sc", "crd", "hpa", "ns"])
def test_short_and_singular_names_are_understood(kubectl: Kubectl, name: str) -> None:
    kubectl("get", name)


def test_explain_describes_built_in_kinds(kubectl: Kubectl) -> None:
    pod = kubectl("explain", "pod")
    nested = kubectl("explain", "pod.spec.containers.resources.requests")
    recursive = kubectl("explain", "deployment.spec", "--recursive")

    assert "One or more containers that run together on one node." in " ".join(pod.split())
    assert "defaults to the limits" in " ".join(nested.split())
    assert "terminationGracePeriodSeconds" in recursive
    assert "matchLabels" in recursive


def test_explain_knows_versions_and_refuses_unknown_fields(kubectl: Kubectl) -> None:
    old = kubectl("explain", "hpa.spec", "--api-version=autoscaling/v1")

    assert "targetCPUUtilizationPercentage" in old
    assert "targetCPUUtilizationPercentage" not in kubectl("explain", "hpa.spec")
    assert "nonsense" in kubectl.fails("explain", "pod.spec.nonsense")


def test_version_and_cluster_info(kubectl: Kubectl) -> None:
    version = json.loads(kubectl("version", "-o", "json"))

    assert version["serverVersion"]["major"] == "1"
    assert "control plane" in kubectl("cluster-info")
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert json.loads(kubectl("get", "--raw", "/api/v1/namespaces/default"))["kind"] == "Namespace"


def test_everything_is_allowed(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert kubectl("auth", "can-i", "*", "*", "-A").strip() == "yes"
    assert "*.*" in kubectl("auth", "can-i", "--list")


def test_config_view_shows_the_context(kubectl: Kubectl) -> None:
    assert "embedded" in kubectl("config", "view")
    assert kubectl("config", "current-context").strip() == "embedded"


def test_metrics_are_said_to_be_missing(kubectl: Kubectl) -> None:
    assert "etrics" in kubectl.fails("top", "nodes")


def test_a_wrong_token_is_refused(kubectl: Kubectl) -> None:
    assert "logged in" in kubectl.fails("get", "pods", "--token=wrong")
