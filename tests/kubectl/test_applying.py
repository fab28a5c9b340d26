"""apply, diff and server-side apply."""

import pytest
import yaml

from tests.kubectl.conftest import Kubectl, config, deployment

pytestmark = pytest.mark.kubectl


def test_apply_creates_configures_and_leaves_alone(kubectl: Kubectl) -> None:
    first = kubectl.apply(deployment("web"), config("settings", mode="slow"))
    again = kubectl.apply(deployment("web"), config("settings", mode="slow"))
    changed = kubectl.apply(deployment("web", replicas=3), config("settings", mode="slow"))

    assert first.split("\n")[:2] == ["deployment.apps/web created", "configmap/settings created"]
    assert again.split("\n")[:2] == ["deployment.apps/web unchanged", "configmap/settings unchanged"]
    assert changed.split("\n")[:2] == ["deployment.apps/web configured", "configmap/settings unchanged"]


def test_apply_removes_what_left_the_manifest_and_keeps_what_others_set(kubectl: Kubectl) -> None:
    kubectl.apply(config("settings", mode="slow", colour="red"))
    kubectl("patch", "configmap", "settings", "--type=merge", "-p", '{"data":{"extra":"kept"}}')

    kubectl.apply(config("settings", mode="slow"))

    assert kubectl.json("configmap", "settings")["data"] == {"mode": "slow", "extra": "kept"}


def test_apply_merges_lists_by_their_keys(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))
    kubectl("set", "env", "deployment/web", "ADDED=later")

    kubectl.apply(deployment("web", image="nginx:2"))

    (main,) = kubectl.json("deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert main["image"] == "nginx:2"
    assert main["env"] == [{"name": "ADDED", "value": "later"}]


def test_apply_refuses_invalid_objects_by_field(kubectl: Kubectl) -> None:
    broken = deployment("web")
    broken["spec"]["template"]["metadata"]["labels"] = {"app": "other"}

    complaint = kubectl.fails("apply", "-f", "-", stdin=yaml.safe_dump(broken))

    assert 'Deployment.apps "web" is invalid' in complaint or 'The Deployment "web" is invalid' in complaint
    assert "spec.template.metadata.labels" in complaint


def test_apply_prune_deletes_what_is_gone_from_the_set(kubectl: Kubectl) -> None:
    label = {"set": "one"}
    kept, gone = config("kept"), config("gone")
    for obj in (kept, gone):
        obj["metadata"]["labels"] = label
    kubectl.apply(kept, gone)

    flags = ("--prune", "-l", "set=one")
    allow = "--prune-allowlist" if kubectl.minor >= 26 else "--prune-whitelist"
    kubectl.apply(kept, flags=(*flags, f"{allow}=core/v1/ConfigMap"))

    assert kubectl("get", "configmap", "-l", "set=one", "-o", "name") == "configmap/kept\n"


def test_diff_shows_the_change_and_its_exit_code(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web"))

    same = kubectl.run("diff", "-f", "-", stdin=yaml.safe_dump(deployment("web")))
    other = kubectl.run("diff", "-f", "-", stdin=yaml.safe_dump(deployment("web", replicas=3)))

    assert (same.returncode, same.stdout) == (0, ""), same.stderr
    assert other.returncode == 1, other.stderr
    assert "+  replicas: 3" in other.stdout
    assert kubectl.json("deployment", "web")["spec"]["replicas"] == 2


def test_server_side_apply_owns_fields_and_reports_conflicts(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("web", replicas=2), flags=("--server-side", "--field-manager=first"))

    stdin = yaml.safe_dump(deployment("web", replicas=5))
    conflict = kubectl.fails("apply", "--server-side", "--field-manager=second", "-f", "-", stdin=stdin)
    kept = kubectl.json("deployment", "web")["spec"]["replicas"]
    forced = kubectl(
        "apply", "--server-side", "--field-manager=second", "--force-conflicts", "-f", "-", stdin=stdin
    )

    assert 'conflict with "first"' in conflict
    assert ".spec.replicas" in conflict
    assert kept == 2
    assert "serverside-applied" in forced
    assert kubectl.json("deployment", "web")["spec"]["replicas"] == 5


def test_server_side_apply_drops_fields_that_leave_the_manifest(kubectl: Kubectl) -> None:
    flags = ("--server-side", "--field-manager=owner")
    kubectl.apply(config("settings", mode="slow", colour="red"), flags=flags)

    kubectl.apply(config("settings", mode="fast"), flags=flags)

    assert kubectl.json("configmap", "settings")["data"] == {"mode": "fast"}
    managers = kubectl("get", "configmap", "settings", "-o", "yaml", *_show_managed(kubectl))
    assert "manager: owner" in managers
    assert "operation: Apply" in managers


def _show_managed(kubectl: Kubectl) -> tuple[str, ...]:
    return ("--show-managed-fields",) if kubectl.minor >= 21 else ()


def test_a_server_side_dry_run_shows_the_result_only(kubectl: Kubectl) -> None:
    text = kubectl.apply(
        config("settings", mode="x"), flags=("--server-side", "--dry-run=server", "-o", "yaml")
    )

    assert yaml.safe_load(text)["data"] == {"mode": "x"}
    assert "not found" in kubectl.fails("get", "configmap", "settings")
