"""What the server says about itself: versions, resources, fields, permissions."""

import json

import pytest

from tests.kubectl.conftest import Kubectl

pytestmark = pytest.mark.kubectl


def test_api_resources_list_names_scopes_and_verbs(any_namespace: Kubectl) -> None:
    rows = {
        row.split()[0]: row.split() for row in any_namespace("api-resources", "--no-headers").splitlines()
    }

    assert rows["pods"] == ["pods", "po", "v1", "true", "Pod"]
    assert rows["nodes"] == ["nodes", "no", "v1", "false", "Node"]
    assert rows["deployments"] == ["deployments", "deploy", "apps/v1", "true", "Deployment"]
    assert rows["horizontalpodautoscalers"][2] == "autoscaling/v2"
    listed = any_namespace("api-resources", "--api-group=policy", "-o", "name", "--verbs=watch").split()
    assert listed == ["poddisruptionbudgets.policy"]


def test_api_versions_are_complete(any_namespace: Kubectl) -> None:
    versions = any_namespace("api-versions").split()

    assert {"v1", "apps/v1", "batch/v1", "policy/v1", "autoscaling/v1", "autoscaling/v2"} <= set(versions)
    assert versions == sorted(versions)


@pytest.mark.parametrize("name", ["po", "pod", "pods", "deploy", "sts", "pdb", "sc", "crd", "hpa", "ns"])
def test_short_and_singular_names_are_understood(any_namespace: Kubectl, name: str) -> None:
    any_namespace("get", name)


def test_explain_describes_built_in_kinds(any_namespace: Kubectl) -> None:
    pod = any_namespace("explain", "pod")
    nested = any_namespace("explain", "pod.spec.containers.resources.requests")
    recursive = any_namespace("explain", "deployment.spec", "--recursive")

    assert "One or more containers that run together on one node." in " ".join(pod.split())
    assert "defaults to the limits" in " ".join(nested.split())
    assert "terminationGracePeriodSeconds" in recursive
    assert "matchLabels" in recursive


def test_explain_knows_versions_and_refuses_unknown_fields(any_namespace: Kubectl) -> None:
    old = any_namespace("explain", "hpa.spec", "--api-version=autoscaling/v1")

    assert "targetCPUUtilizationPercentage" in old
    assert "targetCPUUtilizationPercentage" not in any_namespace("explain", "hpa.spec")
    assert "nonsense" in any_namespace.fails("explain", "pod.spec.nonsense")


def test_version_and_cluster_info(any_namespace: Kubectl) -> None:
    version = json.loads(any_namespace("version", "-o", "json"))

    assert version["serverVersion"]["major"] == "1"
    assert "control plane" in any_namespace("cluster-info")
    assert any_namespace("get", "--raw", "/readyz") == "ok"
    assert json.loads(any_namespace("get", "--raw", "/api/v1/namespaces/default"))["kind"] == "Namespace"


def test_everything_is_allowed(any_namespace: Kubectl) -> None:
    assert any_namespace("auth", "can-i", "create", "pods").strip() == "yes"
    assert any_namespace("auth", "can-i", "*", "*", "-A").strip() == "yes"
    assert "*.*" in any_namespace("auth", "can-i", "--list")


def test_config_view_shows_the_context(any_namespace: Kubectl) -> None:
    assert "embedded" in any_namespace("config", "view")
    assert any_namespace("config", "current-context").strip() == "embedded"


def test_metrics_are_said_to_be_missing(any_namespace: Kubectl) -> None:
    assert "etrics" in any_namespace.fails("top", "nodes")


def test_a_wrong_token_is_refused(any_namespace: Kubectl) -> None:
    assert "logged in" in any_namespace.fails("get", "pods", "--token=wrong")
