"""Run every test of this folder with every kubectl found: on PATH, and in KARPOOL_KUBECTL (a:b:c).

Where there is none, each test is skipped and says so.
"""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubectl.serving import RunningServer

NONE_FOUND = "no kubectl on PATH or in KARPOOL_KUBECTL; install one to run these tests"
_names = itertools.count(1)
_minors: dict[str, int] = {}


def binaries() -> list[str]:
    listed = os.environ.get("KARPOOL_KUBECTL", "").split(":")
    found = [path for name in ("kubectl", *filter(None, listed)) if (path := shutil.which(name))]
    return list(dict.fromkeys(found))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "binary" in metafunc.fixturenames:
        found = binaries()
        missing = pytest.param("", marks=pytest.mark.skip(reason=NONE_FOUND), id="no kubectl")
        metafunc.parametrize("binary", found or [missing], scope="session")


class Kubectl:
    """One kubectl, pointed at the server and at a namespace of the test's own."""

    def __init__(self, binary: str, home: Path, server: RunningServer, namespace: str = "default") -> None:
        self._binary = binary
        self._home = home
        self.server = server
        self.namespace = namespace

    def within(self, namespace: str) -> "Kubectl":
        return Kubectl(self._binary, self._home, self.server, namespace)

    @property
    def minor(self) -> int:
        """The minor version, for the few things that only newer ones can do."""
        if self._binary not in _minors:
            text = self("version", "--client", "-o", "json")
            _minors[self._binary] = int(json.loads(text)["clientVersion"]["minor"].rstrip("+"))
        return _minors[self._binary]

    def popen(self, *args: str, **more: Any) -> "subprocess.Popen[str]":
        environment = {
            "HOME": str(self._home),
            "KUBECONFIG": str(self.server.kubeconfig),
            "PATH": os.environ["PATH"],
            **more.pop("env", {}),
        }
        command = [self._binary, "--namespace", self.namespace, *args]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe, **more
        )

    def run(self, *args: str, stdin: str = "", **more: Any) -> "subprocess.CompletedProcess[str]":
        with self.popen(*args, **more) as process:
            out, err = process.communicate(stdin, timeout=40)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def __call__(self, *args: str, stdin: str = "", **more: Any) -> str:
        """What it prints; the test fails when kubectl does."""
        done = self.run(*args, stdin=stdin, **more)
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def fails(self, *args: str, stdin: str = "", **more: Any) -> str:
        """What it complains about; the test fails when kubectl succeeds."""
        done = self.run(*args, stdin=stdin, **more)
        assert done.returncode != 0, f"kubectl {' '.join(args)} succeeded: {done.stdout}"
        return done.stderr

    def apply(self, *objects: dict[str, Any], flags: tuple[str, ...] = ()) -> str:
        return self("apply", *flags, "-f", "-", stdin=yaml.safe_dump_all(objects))

    def json(self, *args: str) -> Any:
        return json.loads(self("get", *args, "-o", "json"))

    def rows(self, *args: str) -> list[list[str]]:
        """A printed table, as cells; columns are at least two spaces apart."""
        lines = self(*args).splitlines()
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def any_namespace(binary: str, server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """The kubectl of this round, in the namespace default."""
    return Kubectl(binary, tmp_path_factory.mktemp("home"), server)


@pytest.fixture
def kubectl(any_namespace: Kubectl) -> Kubectl:
    """In a fresh namespace."""
    name = f"t{next(_names)}"
    any_namespace.server.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return any_namespace.within(name)


@pytest.fixture
def node(kubectl: Kubectl) -> str:
    """The name of a ready node that belongs to this test alone."""
    name = f"node-{kubectl.namespace}"
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "posting ready status",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    info = dict.fromkeys(("architecture", "bootID", "kubeProxyVersion", "machineID", "systemUUID"), "x")
    info |= {
        "kubeletVersion": "v1.34.0",
        "osImage": "Test OS",
        "kernelVersion": "6.1",
        "operatingSystem": "linux",
        "containerRuntimeVersion": "none://1",
    }
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    kubectl.server.send(
        "POST",
        "/api/v1/nodes",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"node-role.kubernetes.io/worker": ""}},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [ready],
                "nodeInfo": info,
                "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
            },
        },
    )
    return name


def container(image: str = "nginx:1.25", **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": image, **more}


def pod(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [container()], **spec},
    }


def deployment(name: str, *, replicas: int = 2, image: str = "nginx:1.25") -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container(image)]}},
        },
    }


def config(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
