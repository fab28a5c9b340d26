"""`karpool cluster start`, driven by kubectl alone: a thousand pods come and go, and a node is drained."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(240)]

SPEED = "60"  # a node takes half a simulated minute to come
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web"},
    "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}},
}


class Live:
    def __init__(self, binary: str, folder: Path) -> None:
        self._kubectl = [binary, "--kubeconfig", str(folder / "kubeconfig")]
        self._environment = {**os.environ, "HOME": str(folder)}
        command = [sys.executable, "-m", "karpool.cli.main", "cluster", "start", "--speed", SPEED]
        self.process = subprocess.Popen(
            [*command, "--write-kubeconfig", str(folder / "kubeconfig")], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        said = ""
        while "try: kubectl" not in said:
            line = self.process.stderr.readline()
            if not line:
                self.process.wait()
                self.process.stderr.close()
                raise AssertionError(f"the clusters did not start: {said}")
            said += line

    def __call__(self, *args: str, stdin: str = "") -> str:
        result = subprocess.run(
            [*self._kubectl, *args],
            input=stdin,
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, f"kubectl {' '.join(args)}: {result.stderr}"
        return result.stdout

    def items(self, kind: str) -> list[dict[str, Any]]:
        return list(json.loads(self("get", kind, "-o", "json"))["items"])

    def until_left(self, kind: str, count: int) -> None:
        deadline = time.monotonic() + 60
        while (left := len(self("get", kind, "-o", "name").splitlines())) != count:
            assert time.monotonic() < deadline, f"there are {left} {kind}, not {count}"


@pytest.fixture
def live(binary: str, tmp_path: Path) -> Iterator[Live]:
    running = Live(binary, tmp_path)
    yield running
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=20) == 0
    running.process.stderr.close()  # type: ignore[union-attr]


@pytest.mark.long
def test_a_thousand_pods_and_back(live: Live) -> None:
    assert live.items("nodes") == []
    live("create", "deployment", "web", "--image=web:1")
    live("set", "resources", "deployment", "web", "--requests=cpu=100m,memory=64Mi")
    live("scale", "deployment", "web", "--replicas=1000")
    live("rollout", "status", "deployment/web", "--timeout=100s")

    # A rollout does not wait for old pods that are on their way out; those that stay are exactly as many.
    assert sum("deletionTimestamp" not in pod["metadata"] for pod in live.items("pods")) == 1000
    live.until_left("pods", 1000)
    nodes = live.items("nodes")
    assert nodes
    assert {claim["status"]["nodeName"] for claim in live.items("nodeclaims")} == {
        node["metadata"]["name"] for node in nodes
    }

    live("scale", "deployment", "web", "--replicas=0")
    live.until_left("pods", 0)
    live("delete", "nodeclaims", "--all", "--timeout=60s")
    assert live.items("nodes") == []


@pytest.mark.long
def test_a_drained_node_keeps_the_budget_and_a_deleted_claim_goes(live: Live) -> None:
    live("create", "deployment", "web", "--image=web:1", "--replicas=4")
    live("set", "resources", "deployment", "web", "--requests=cpu=1")
    live("rollout", "status", "deployment/web", "--timeout=60s")
    # Not with `create poddisruptionbudget`: older ones ask for a version that servers no longer have.
    live("apply", "-f", "-", stdin=json.dumps(BUDGET))
    node = live.items("pods")[0]["spec"]["nodeName"]

    live("drain", node, "--timeout=60s", "--ignore-daemonsets", "--force", "--delete-emptydir-data")
    live("rollout", "status", "deployment/web", "--timeout=60s")
    assert node not in {pod["spec"]["nodeName"] for pod in live.items("pods")}

    (claim,) = [each for each in live.items("nodeclaims") if each["status"]["nodeName"] == node]
    live("delete", "nodeclaim", claim["metadata"]["name"], "--timeout=60s")
    assert node not in {each["metadata"]["name"] for each in live.items("nodes")}
