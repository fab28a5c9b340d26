"""The chart, by the real Helm on the real API server: installed, changed and removed, restricted."""

import copy
import json
import os
import re
import secrets
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.manifests import DEPLOY
from tests.kube.pki import Authority

from e2e.components import karpool_command
from e2e.control_plane import api_server, etcd
from e2e.kubectl import Kubectl
from e2e.peers import Built
from e2e.processes import Program, answers, free_port

Object = dict[str, Any]
CHART = DEPLOY / "helm" / "karpool"
HERE = "karpool-system"
_RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
_CLIENT = {"tls": {"secretName": "estimator-client"}}
EVERYTHING: Object = {
    "estimator": {"enabled": True, "clusters": [{"name": "member1"}], "tls": {"secretName": "estimator"}},
    "scheduler": {"enabled": True, "kubeconfig": {"secretName": "karmada"}, "estimators": _CLIENT},
    "descheduler": {"enabled": True, "kubeconfig": {"secretName": "karmada"}, "estimators": _CLIENT},
    "consolidator": {"enabled": True, "dryRun": False},
    "gpuScaler": {"enabled": True},
    "dashboard": {"enabled": True, "token": {"secretName": "token"}, "tls": {"secretName": "dashboard"}},
}
RUNNING = {
    "karpool-estimator-member1",
    "karpool-scheduler",
    "karpool-descheduler",
    "karpool-consolidator",
    "karpool-gpu-scaler",
    "karpool-dashboard",
}


def unversioned(folder: Path) -> Path:
    """The chart, asking for no version: an API server built from its module does not know its own."""
    chart = folder / "karpool"
    shutil.copytree(CHART, chart)
    about = chart / "Chart.yaml"
    lines = about.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("kubeVersion:")]
    assert len(kept) == len(lines) - 1
    about.write_text("".join(kept))
    return chart


class Helm:
    def __init__(self, program: Path, folder: Path, kubeconfig: Path) -> None:
        self.chart = str(unversioned(folder))
        self._program = str(program)
        homes = {f"HELM_{each}_HOME": str(folder / each.lower()) for each in ("CACHE", "CONFIG", "DATA")}
        self._environment = {**os.environ, **homes, "KUBECONFIG": str(kubeconfig)}

    def __call__(self, *arguments: str, values: Object | None = None) -> str:
        """What it says; an error, or a warning of the API server, raises."""
        done = self.run(*arguments, values=values)
        assert done.returncode == 0 and not done.stderr, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def run(self, *arguments: str, values: Object | None = None) -> subprocess.CompletedProcess[str]:
        stdin_values = ["-f", "-"] if values is not None else []
        return subprocess.run(
            [self._program, *arguments, *stdin_values],
            input=json.dumps(values or {}),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


@pytest.fixture(scope="module")
def cluster(
    peers: dict[str, Built], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Helm, Kubectl]]:
    """A server of its own, for the same reason as with the plain manifests."""
    folder, kubernetes = tmp_path_factory.mktemp("charting"), peers["kubernetes"]
    with etcd(peers["etcd"], folder) as url, api_server(kubernetes, folder, url, "charting") as server:
        kubectl = Kubectl(kubernetes.program("kubectl"), server.kubeconfig())
        kubectl("create", "namespace", HERE)
        kubectl("label", "namespace", HERE, _RESTRICTED)
        kubectl("create", "serviceaccount", "default", "-n", HERE)  # no controller manager makes it
        yield Helm(peers["helm"].program("helm"), folder, server.kubeconfig()), kubectl


def pod_of(deployment: Object) -> Object:
    template = copy.deepcopy(deployment["spec"]["template"])
    meta = {"name": "one", "namespace": HERE, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def kubeconfig_of(kubectl: Kubectl, deployment: Object, folder: Path) -> Path:
    """That of the account that the chart made for a component."""
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": kubectl("create", "token", account, "-n", HERE).strip()}
    path = folder / f"{account}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def arguments_of(deployment: Object) -> list[str]:
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


def the_dashboard_is_opened(kubectl: Kubectl, deployment: Object, folder: Path) -> None:
    """With the arguments of its Deployment, as the account that the chart made for it."""
    kubeconfig = kubeconfig_of(kubectl, deployment, folder)
    authority = Authority("dashboard")
    pair = authority.issue("dashboard", hosts=("127.0.0.1",))
    word = secrets.token_urlsafe(24)
    files = {
        "token": word.encode(),
        "tls.crt": pair.certificate,
        "tls.key": pair.key,
        "ca.crt": authority.pem,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    port = free_port()
    arguments = [re.sub(r"=/etc/karpool/\w+/", f"={folder}/", flag) for flag in arguments_of(deployment)]
    more = (f"--kubeconfig={kubeconfig}", f"--port={port}")
    program = Program("dashboard", karpool_command(*arguments, *more), folder / "dashboard.log")
    try:
        url = f"https://127.0.0.1:{port}"
        program.wait_until(answers(f"{url}/readyz", folder / "ca.crt"))
        assert answers(f"{url}/api/v1/fleet", folder / "ca.crt", code=401)()
        request = urllib.request.Request(f"{url}/api/v1/fleet", headers={"Authorization": f"Bearer {word}"})
        trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        with urllib.request.urlopen(request, context=trust, timeout=30) as answer:
            (shown,) = json.load(answer)["clusters"]
        assert not shown.get("problems") and not shown.get("notReady"), shown  # nothing was denied
        assert word not in program.text()
        assert not re.search(r"\b403\b", program.text())  # not a fraction of a second
    finally:
        code = program.stop()
    assert code == 0, program.tail()


def names(kubectl: Kubectl, *arguments: str) -> set[str]:
    return {each["metadata"]["name"] for each in kubectl.items(*arguments)}


def test_a_release_lives(cluster: tuple[Helm, Kubectl], tmp_path: Path) -> None:
    helm, kubectl = cluster
    assert "0 chart(s) failed" in helm("lint", "--strict", helm.chart)

    said = helm("install", "karpool", helm.chart, "-n", HERE, values=EVERYTHING)
    assert "Running in namespace" in said and "port-forward service/karpool-dashboard 8088:443" in said
    deployments = kubectl.items("deployments", "-n", HERE)
    assert {each["metadata"]["name"] for each in deployments} == RUNNING
    for deployment in deployments:
        made = kubectl.run(
            "create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(pod_of(deployment))
        )
        assert made.returncode == 0 and "Warning" not in made.stderr, made.stderr
    assert names(kubectl, "networkpolicies", "-n", HERE) == RUNNING
    assert names(kubectl, "poddisruptionbudgets", "-n", HERE) == RUNNING - {"karpool-dashboard"}

    (page,) = [each for each in deployments if each["metadata"]["name"] == "karpool-dashboard"]
    the_dashboard_is_opened(kubectl, page, tmp_path)

    # The same again changes nothing that runs; one component less takes all of it away, and nothing else.
    again = ("upgrade", "karpool", helm.chart, "-n", HERE, "--reuse-values")
    helm(*again)
    assert [each["metadata"]["generation"] for each in kubectl.items("deployments", "-n", HERE)] == [1] * 6
    helm(*again, "--set", "dashboard.enabled=false")
    assert names(kubectl, "deployments", "-n", HERE) == RUNNING - {"karpool-dashboard"}
    assert not kubectl.items("all,sa,netpol", "-n", HERE, "-l", "app.kubernetes.io/component=dashboard")
    assert "karpool-dashboard" not in names(kubectl, "clusterroles")
    helm("rollback", "karpool", "-n", HERE)
    assert names(kubectl, "deployments", "-n", HERE) == RUNNING

    helm("uninstall", "karpool", "-n", HERE, "--cascade=background")
    ours = ("-l", "app.kubernetes.io/instance=karpool")
    left = kubectl.items("deployments,services,sa,roles,rolebindings,netpol,pdb", "-A", *ours)
    left += kubectl.items("clusterroles,clusterrolebindings,priorityclasses", *ours)
    assert not left
    # What may still be under way, and whose loss nobody could undo, stays.
    assert "karpool-smart-pods" in names(kubectl, "namespaces")
    assert "scaleups.gpu.karpool.dev" in names(kubectl, "customresourcedefinitions")


# In place of the cluster's DNS and Services: every host is a port of this machine.
_SERVICES = """
import json, os, socket, sys

ports, connect = json.loads(os.environ["SERVICE_PORTS"]), socket.create_connection
socket.create_connection = lambda address, *rest: connect(("127.0.0.1", ports[address[0]]), *rest)
exec(sys.argv.pop(1))
"""


def play_kubelet(kubectl: Kubectl, pod_name: str, service_ports: dict[str, int], deadline: float = 60) -> str:
    """Run the container of a pod once it is there, report its end, and return what it printed."""
    end = time.monotonic() + deadline
    while pod_name not in names(kubectl, "pods", "-n", HERE):
        assert time.monotonic() < end, f"no pod {pod_name}"
        time.sleep(0.1)
    (container,) = json.loads(kubectl("get", "pod", pod_name, "-n", HERE, "-o", "json"))["spec"]["containers"]
    assert container["command"] == ["/usr/bin/python3.11", "-I", "-c"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", _SERVICES, *container["args"]],
        env={"SERVICE_PORTS": json.dumps(service_ports)},
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline,
    )
    status = {"phase": "Failed" if done.returncode else "Succeeded"}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    kubectl("patch", "pod", pod_name, "-n", HERE, *patch)
    return done.stdout + done.stderr


def test_helm_test_passes_only_while_the_components_answer(
    cluster: tuple[Helm, Kubectl], tmp_path: Path
) -> None:
    helm, kubectl = cluster
    helm("install", "karpool", helm.chart, "-n", HERE, values={"consolidator": {"enabled": True}})
    (deployment,) = kubectl.items("deployments", "-n", HERE)
    metrics_port = free_port()
    flags = (
        f"--kubeconfig={kubeconfig_of(kubectl, deployment, tmp_path)}",
        f"--metrics-bind-address=127.0.0.1:{metrics_port}",
        f"--health-probe-bind-address=127.0.0.1:{free_port()}",
    )
    command = karpool_command(*arguments_of(deployment), *flags)
    program = Program("consolidator", command, tmp_path / "consolidator.log")
    ports = {f"karpool-consolidator.{HERE}.svc": metrics_port}

    def helm_test() -> tuple[subprocess.CompletedProcess[str], str]:
        with ThreadPoolExecutor(1) as pool:
            tested = pool.submit(helm.run, "test", "karpool", "-n", HERE, "--timeout", "60s")
            printed = play_kubelet(kubectl, "karpool-test", ports)
            return tested.result(), printed

    try:
        program.wait_until(answers(f"http://127.0.0.1:{metrics_port}/metrics"))
        tested, printed = helm_test()
        assert tested.returncode == 0, tested.stderr
        assert printed.split() == [f"http://karpool-consolidator.{HERE}.svc:8080/metrics", "200"]
        assert "karpool-test" not in names(kubectl, "pods", "-n", HERE)
    finally:
        program.stop()
    tested, printed = helm_test()
    assert tested.returncode != 0 and "refused" in printed
    kubectl("delete", "pod", "karpool-test", "-n", HERE, "--now")
    helm("uninstall", "karpool", "-n", HERE, "--cascade=background")
