"""A real member cluster: control plane, kwok in the place of kubelets, and real Karpenter.

Karpenter runs with its kwok provider: every decision is Karpenter's own, only the machines are
Node objects that kwok keeps alive. What it may buy is in `market.py`.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.control_plane import ApiServer, api_server, crds_of
from e2e.kubectl import PATIENCE, Kubectl, Object, condition, wait_for
from e2e.market import GENERAL, ZONES
from e2e.peers import Built
from e2e.processes import Program, answers, free_port

NODE_CLASS = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
}


@dataclass
class Member:
    server: ApiServer
    kubectl: Kubectl
    karpenter: Program | None = None

    def pods(self, namespace: str, phase: str = "") -> list[Object]:
        """Those that are not going."""
        return [
            pod
            for pod in self.kubectl.items("pods", "-n", namespace)
            if "deletionTimestamp" not in pod["metadata"] and phase in ("", pod["status"].get("phase"))
        ]

    def wait_running(self, namespace: str, count: int, deadline: float = PATIENCE) -> None:
        """Until so many pods run, no more and no fewer."""
        wait_for(
            "pods run",
            lambda: len(self.pods(namespace, phase="Running")) == count,
            deadline,
            otherwise=lambda: f"{count} wanted in {self.server.name}: {self._seen(namespace)}",
        )
        assert len(self.pods(namespace)) == count, self._seen(namespace)

    def _seen(self, namespace: str) -> str:
        kinds = Counter(
            (pod["status"].get("phase"), condition(pod, "PodScheduled").get("message", ""))
            for pod in self.pods(namespace)
        )
        return ", ".join(f"{number} {phase} {why}".strip() for (phase, why), number in kinds.items())


@contextlib.contextmanager
def without_nodes(member: Member) -> Iterator[None]:
    """A member of Karpenter's that begins and ends without pools, claims and nodes."""
    _clear(member)
    try:
        yield
    finally:
        _clear(member)


def _clear(member: Member) -> None:
    kubectl = member.kubectl
    kubectl("delete", "poddisruptionbudgets", "--all", "-A")
    kubectl("delete", "nodepools", "--all", "--timeout=120s")
    kubectl("delete", "nodeclaims", "--all", "--wait=false")
    # The provider creates nodes late, and may do so for a claim that is gone.
    kubectl("delete", "nodes", "--all", "--wait=false")
    wait_for("no node left", lambda: not kubectl.items("nodes") and not kubectl.items("nodeclaims"))


@contextlib.contextmanager
def member(
    peers: Mapping[str, Built],
    folder: Path,
    etcd_url: str,
    name: str = "member1",
    users: Sequence[str] = (),
    instance_types: Sequence[Mapping[str, Any]] = (),
    flags: Sequence[str] = (),
    karpenter_env: Mapping[str, str] | None = None,
) -> Iterator[Member]:
    """A cluster whose pods are scheduled and start, with Karpenter when it has something to buy.

    `karpenter_env` sets its options: `{"IGNORE_DRA_REQUESTS": "false"}`, or `feature_gates("NodeOverlay")`.
    """
    with (
        api_server(
            peers["kubernetes"], folder, etcd_url, name, users, flags, controllers=(), scheduler=True
        ) as server,
        contextlib.ExitStack() as running,
    ):
        kubectl = Kubectl(peers["kubernetes"].program("kubectl"), server.kubeconfig())
        kwok = Program(
            f"kwok of {name}",
            [
                peers["kwok"].program("kwok"),
                f"--kubeconfig={server.kubeconfig()}",
                "--manage-all-nodes",
                "--node-lease-duration-seconds=40",
                f"--config={_stages(peers['kwok'].source, server.folder)}",
            ],
            server.folder / "kwok.log",
        )
        running.callback(kwok.kill)
        cluster = Member(server, kubectl)
        if instance_types:
            cluster.karpenter = karpenter(peers["karpenter"], server, kubectl, instance_types, karpenter_env)
            running.callback(cluster.karpenter.kill)
        yield cluster


def feature_gates(*more: str) -> dict[str, str]:
    """The gates that scenarios rely on, and more of them: for the environment of Karpenter."""
    gates = ("CapacityBuffer", "StaticCapacity", "SpotToSpotConsolidation", *more)
    return {"FEATURE_GATES": ",".join(f"{gate}=true" for gate in gates)}


def karpenter(
    built: Built,
    server: ApiServer,
    kubectl: Kubectl,
    instance_types: Sequence[Mapping[str, Any]],
    env: Mapping[str, str] | None = None,
) -> Program:
    """Karpenter with its kwok provider, ready, with its CRDs and one node class."""
    definitions = [
        *crds_of(built.source / "pkg" / "apis" / "crds"),
        *crds_of(built.source / "kwok" / "apis" / "crds"),
    ]
    kubectl.apply(*definitions)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=120s")
    kubectl.apply(NODE_CLASS)
    types = server.folder / "instance-types.json"
    types.write_text(json.dumps(list(instance_types)))
    health = free_port()
    program = Program(
        f"karpenter of {server.name}",
        [built.program("kwok")],
        server.folder / "karpenter.log",
        {
            "KUBECONFIG": str(server.kubeconfig()),
            "INSTANCE_TYPES_FILE_PATH": str(types),
            "SYSTEM_NAMESPACE": "kube-system",
            "KUBERNETES_MIN_VERSION": "1.19.0-0",
            "KARPENTER_SERVICE": "karpenter",
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": str(free_port()),
            "HEALTH_PROBE_PORT": str(health),
            "LOG_LEVEL": "info",
            **feature_gates(),
            **(env or {}),
        },
    )
    program.wait_until(answers(f"http://127.0.0.1:{health}/readyz"))
    return program


def node_pool(name: str = "general", types: Sequence[str] = GENERAL, **spec: Any) -> dict[str, Any]:
    """A NodePool over some of what the provider sells, with Karpenter's own consolidation off."""
    template = {
        "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            "requirements": [
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": list(ZONES)},
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)},
            ],
            "expireAfter": "Never",
        }
    }
    quiet = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never", "budgets": [{"nodes": "0"}]}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": template, "disruption": quiet, **spec},
    }


def _stages(source: Path, folder: Path) -> Path:
    """The stages kwok ships for nodes with leases and for pods that start at once, in one file."""
    stages = source / "kustomize" / "stage"
    files = [
        file
        for part in (
            stages / "node" / "fast",
            stages / "node" / "heartbeat-with-lease",
            stages / "pod" / "fast",
        )
        for file in sorted(part.glob("*.yaml"))
        if file.name != "kustomization.yaml"
    ]
    path = folder / "kwok.yaml"
    path.write_text("\n---\n".join(file.read_text() for file in files))
    return path
