"""What runs is non-root, read-only, probed, and started with flags that exist."""

from contextlib import ExitStack
from typing import Any

import click
import pytest
import yaml

from karpool.cli.main import commands
from tests.deploy.manifests import DEPLOY, Object, objects, of_kind

CONTROLLERS = (
    "estimator",
    "scheduler",
    "descheduler",
    "cluster-summary",
    "consolidator",
    "consolidator-planning",
    "gpu-scaler",
)
RUNNING = (*CONTROLLERS, "dashboard")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def deployment(folder: str) -> Object:
    (found,) = of_kind(folder, "Deployment")
    return found


def pod(folder: str) -> Object:
    spec: Object = deployment(folder)["spec"]["template"]["spec"]
    return spec


def container(folder: str) -> Object:
    (found,) = pod(folder)["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("folder", RUNNING)
def test_pods_keep_to_the_restricted_level(folder: str) -> None:
    spec, inner = pod(folder), container(folder)["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inner == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all(set(each) - {"name"} <= {"emptyDir", "secret"} for each in spec["volumes"])


@pytest.mark.parametrize("folder", RUNNING)
def test_only_those_who_talk_to_their_own_cluster_have_its_token(folder: str) -> None:
    remote = any(each["name"] == "kubeconfig" for each in pod(folder)["volumes"])
    assert pod(folder)["automountServiceAccountToken"] is not remote


@pytest.mark.parametrize("folder", RUNNING)
def test_certificates_are_mounted_so_that_they_can_be_rotated(folder: str) -> None:
    for mount in container(folder)["volumeMounts"]:
        assert "subPath" not in mount, "a file mounted alone is never replaced"
        assert mount.get("readOnly") is True or mount["mountPath"] == "/tmp"


@pytest.mark.parametrize("folder", CONTROLLERS)
def test_probes_ask_where_the_program_answers(folder: str) -> None:
    found = container(folder)
    ports = {each["name"]: each["containerPort"] for each in found["ports"]}
    flags = dict(each.split("=", 1) for each in found["args"] if "=" in each)
    assert flags["--health-probe-bind-address"] == f":{ports['probes']}"
    assert flags["--metrics-bind-address"] == f":{ports['metrics']}"
    if "grpc" in ports:
        assert flags["--server-port"] == str(ports["grpc"])
    paths = {name: found[name]["httpGet"]["path"] for name in PROBES}
    assert paths == {"livenessProbe": "/livez", "readinessProbe": "/readyz", "startupProbe": "/livez"}
    assert {found[name]["httpGet"]["port"] for name in PROBES} == {"probes"}


def test_the_dashboard_answers_everything_on_one_port_with_tls_and_a_token() -> None:
    found = container("dashboard")
    flags = dict(each.split("=", 1) for each in found["args"] if "=" in each)
    assert found["ports"] == [{"name": "web", "containerPort": int(flags["--port"]), "protocol": "TCP"}]
    assert {(found[name]["httpGet"]["port"], found[name]["httpGet"]["scheme"]) for name in PROBES} == {
        ("web", "HTTPS")
    }
    mounts = {each["name"]: each["mountPath"] for each in found["volumeMounts"]}
    assert flags["--token-file"] == f"{mounts['token']}/token"
    assert flags["--tls-cert-file"] == f"{mounts['tls']}/tls.crt"
    (monitor,) = [each for each in objects("member-monitors") if "dashboard" in each["metadata"]["name"]]
    (endpoint,) = monitor["spec"]["endpoints"]
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in pod("dashboard")["volumes"]}
    assert (endpoint["port"], endpoint["scheme"]) == ("web", "https")
    assert endpoint["authorization"]["credentials"] == {"name": volumes["token"], "key": "token"}
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == volumes["tls"]
    (service,) = of_kind("dashboard", "Service")
    assert endpoint["tlsConfig"]["serverName"] == f"{service['metadata']['name']}.karpool-system.svc"
    assert [(each["port"], each["targetPort"]) for each in service["spec"]["ports"]] == [(443, "web")]


@pytest.mark.parametrize("folder", RUNNING)
def test_every_argument_is_one_that_the_command_takes(folder: str) -> None:
    arguments: list[str] = list(container(folder)["args"])
    with ExitStack() as stack, commands.make_context("karpool", arguments) as context:
        name, *rest = [*context._protected_args, *context.args]  # click keeps the name of the command apart
        command = commands.get_command(context, name)
        assert command is not None and name == folder.removesuffix("-planning")
        files = [param for param in command.params if isinstance(param.type, click.Path)]
        for file in files:
            file.type.exists, before = False, file.type.exists  # type: ignore[attr-defined]
            stack.callback(setattr, file.type, "exists", before)
        with command.make_context(name, rest, parent=context) as inner:
            assert isinstance(inner, click.Context) and inner.params


@pytest.mark.parametrize("folder", RUNNING)
def test_services_budgets_and_policies_choose_the_pods(folder: str) -> None:
    labels = deployment(folder)["spec"]["template"]["metadata"]["labels"]
    selectors: list[Any] = [deployment(folder)["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for each in of_kind(folder, "Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(folder, "PodDisruptionBudget")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(folder, "NetworkPolicy")]
    selectors += [each["labelSelector"]["matchLabels"] for each in pod(folder)["topologySpreadConstraints"]]
    assert len(selectors) == (5 if folder == "dashboard" else 6)  # which has one replica, and no budget
    assert all(set(selector.items()) <= set(labels.items()) for selector in selectors)
    (account,) = of_kind(folder, "ServiceAccount")
    assert pod(folder)["serviceAccountName"] == account["metadata"]["name"]


@pytest.mark.parametrize("folder", RUNNING)
def test_network_policies_open_only_the_ports_in_use(folder: str) -> None:
    (policy,) = of_kind(folder, "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert opened == {"estimator": {"metrics", "grpc"}, "dashboard": {"web"}}.get(folder, {"metrics"})
    assert all(rule.get("from") for rule in policy["spec"]["ingress"])
    left = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    estimators = {10352} if folder in ("scheduler", "descheduler", "cluster-summary") else set()
    assert left == {53, 443, 6443, 5443} | estimators


def test_the_services_of_estimators_are_where_schedulers_look() -> None:
    services = {each["metadata"]["name"] for each in of_kind("estimator", "Service")}
    flags = dict(each.split("=", 1) for each in container("scheduler")["args"] if "=" in each)
    assert services == {f"{flags['--scheduler-estimator-service-prefix']}-member1"}


def test_the_values_of_the_chart_name_every_key_of_its_schema() -> None:
    import json

    chart = DEPLOY / "helm" / "karpool"
    schema = json.loads((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    for name in (
        "estimator",
        "scheduler",
        "descheduler",
        "clusterSummary",
        "consolidator",
        "gpuScaler",
        "dashboard",
    ):
        own = set(schema["properties"][name]["properties"]) - set(values)
        assert own | {"settings"} == set(values[name]) - set(values) | {"settings"}, name
