"""A real Karmada control plane: API server with its CRDs, aggregated API server, controllers.

Scheduler, estimators and descheduler are started by the tests, which choose whose: Karmada's
programs or Karpool's. Members are joined in push mode with a token, as `karmadactl join` does.
"""

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.control_plane import ApiServer, api_server, crds_of
from e2e.kubectl import Kubectl, Object, condition, wait_for
from e2e.member import Member
from e2e.peers import Built
from e2e.processes import Program, answers, free_port

SYSTEM = "karmada-system"
CLUSTERS = "karmada-cluster"
ESTIMATOR_PREFIX = "karmada-scheduler-estimator"
ESTIMATOR_PORT = 10352  # what clients look for in a Service; the target port is where it listens
_AGGREGATED = "karmada-aggregated-apiserver"
# The built-in controllers that upstream runs beside its own.
_BUILT_IN = ("namespace", "garbagecollector", "ttl-after-finished", "clusterrole-aggregation")


@dataclass
class Karmada:
    server: ApiServer
    kubectl: Kubectl
    controllers: Program | None = None

    def join(self, member: Member, **spec: Any) -> None:
        """Make a member known, and wait until its status was collected."""
        name = member.server.name
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": CLUSTERS},
            "data": {
                "token": base64.b64encode(member.server.tokens["admin"].encode()).decode(),
                "caBundle": base64.b64encode(member.server.ca.read_bytes()).decode(),
            },
        }
        reference = {"name": name, "namespace": CLUSTERS}
        cluster = {
            "apiVersion": "cluster.karmada.io/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": name},
            "spec": {
                "apiEndpoint": member.server.url,
                "syncMode": "Push",
                "secretRef": reference,
                "impersonatorSecretRef": reference,
                **spec,
            },
        }
        self.kubectl.apply(secret, cluster)
        wait_for(f"member {name} ready", lambda: self._is_ready(name))

    def estimator_at(self, cluster: str, port: int) -> None:
        """Say where the estimator of a member listens, as schedulers look it up."""
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": f"{ESTIMATOR_PREFIX}-{cluster}", "namespace": SYSTEM},
                "spec": {
                    "type": "ExternalName",
                    "externalName": "localhost",
                    "ports": [{"port": ESTIMATOR_PORT, "targetPort": port, "protocol": "TCP"}],
                },
            }
        )

    def no_estimator_at(self, cluster: str) -> None:
        """One that is announced and gone holds up Karmada's scheduler for all clusters."""
        name = f"{ESTIMATOR_PREFIX}-{cluster}"
        self.kubectl("delete", "service", name, "-n", SYSTEM, "--ignore-not-found")

    def placements(self, namespace: str) -> dict[str, dict[str, int]]:
        """By binding: the clusters it was given and how many replicas each."""
        return {
            binding["metadata"]["name"]: {
                target["name"]: target.get("replicas", 0) for target in binding["spec"].get("clusters") or ()
            }
            for binding in self.kubectl.items("resourcebindings", "-n", namespace)
            if condition(binding, "Scheduled").get("status") == "True"
        }

    def refusal(self, namespace: str, name: str) -> Object:
        """The condition that says why a binding is not placed; empty while there is none."""
        named = [
            each
            for each in self.kubectl.items("resourcebindings", "-n", namespace)
            if each["metadata"]["name"] == name
        ]
        found = condition(named[0], "Scheduled") if named else {}
        return found if found.get("status") == "False" else {}

    def _is_ready(self, name: str) -> bool:
        status = self.kubectl.get("cluster", name).get("status", {})
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
        return ready and bool(status.get("apiEnablements"))


@contextlib.contextmanager
def karmada(
    peers: Mapping[str, Built],
    folder: Path,
    etcd_url: str,
    users: Sequence[str] = (),
    *,
    propagates: bool = True,
) -> Iterator[Karmada]:
    """A Karmada without a scheduler; one that does not propagate only keeps its objects."""
    built = peers["karmada"]
    with (
        api_server(peers["kubernetes"], folder, etcd_url, "karmada", users, controllers=_BUILT_IN) as server,
        contextlib.ExitStack() as running,
    ):
        kubectl = Kubectl(peers["kubernetes"].program("kubectl"), server.kubeconfig())
        kubectl.apply(
            *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n}} for n in (SYSTEM, CLUSTERS))
        )
        kubectl.apply(*crds_of(built.source / "charts" / "karmada" / "_crds" / "bases"))
        kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=120s")
        running.callback(_aggregated(built, server, kubectl, etcd_url).kill)
        running.callback(_webhook(built, server, kubectl).kill)
        control = Karmada(server, kubectl, controllers(built, server) if propagates else None)
        running.callback(lambda: control.controllers.kill() if control.controllers is not None else None)
        yield control


def _aggregated(built: Built, server: ApiServer, kubectl: Kubectl, etcd_url: str) -> Program:
    assert server.authority is not None
    host = f"{_AGGREGATED}.{SYSTEM}.svc"
    pair = server.authority.issue(_AGGREGATED, hosts=(host, "localhost", "127.0.0.1"))
    certificate, key = server.folder / "aggregated.crt", server.folder / "aggregated.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    config = server.kubeconfig()
    port = free_port()
    program = Program(
        _AGGREGATED,
        [
            built.program("aggregated-apiserver"),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--etcd-servers={etcd_url}",
            "--etcd-prefix=/karmada-aggregated",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
        ],
        server.folder / "aggregated-apiserver.log",
    )
    program.wait_until(answers(f"https://127.0.0.1:{port}/readyz", server.ca, server.tokens["admin"]))
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _AGGREGATED, "namespace": SYSTEM},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1alpha1.cluster.karmada.io"},
            "spec": {
                "group": "cluster.karmada.io",
                "version": "v1alpha1",
                "groupPriorityMinimum": 2000,
                "versionPriority": 10,
                "caBundle": base64.b64encode(server.authority.pem).decode(),
                "service": {"name": _AGGREGATED, "namespace": SYSTEM, "port": port},
            },
        },
    )
    kubectl("wait", "--for=condition=Available", "apiservice/v1alpha1.cluster.karmada.io", "--timeout=120s")
    return program


# What upstream's webhook completes or checks, of the kinds that scenarios write: group and singular.
_MUTATED = {
    "propagationpolicies": ("policy.karmada.io", "propagationpolicy"),
    "clusterpropagationpolicies": ("policy.karmada.io", "clusterpropagationpolicy"),
    "resourcebindings": ("work.karmada.io", "resourcebinding"),
    "clusterresourcebindings": ("work.karmada.io", "clusterresourcebinding"),
    "works": ("work.karmada.io", "work"),
}
_VALIDATED = {kind: _MUTATED[kind] for kind in _MUTATED if kind not in ("clusterresourcebindings", "works")}
_CONVERTED = ("resourcebindings", "clusterresourcebindings")  # served in two versions


def conversion(kubectl: Kubectl) -> Object:
    """How a definition says that Karmada's webhook, known to that API server, converts its objects."""
    known = kubectl.get("mutatingwebhookconfiguration", "karmada")["webhooks"][0]["clientConfig"]
    base = known["url"].rsplit("/", 1)[0]
    return {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {"url": f"{base}/convert", "caBundle": known["caBundle"]},
            "conversionReviewVersions": ["v1"],
        },
    }


def _webhook(built: Built, server: ApiServer, kubectl: Kubectl) -> Program:
    """Karmada's admission: it gives policies and bindings the ids that tie their works to them."""
    assert server.authority is not None
    pair = server.authority.issue("karmada-webhook", hosts=("localhost", "127.0.0.1"))
    folder = server.folder / "webhook"
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    port = free_port()
    program = Program(
        "karmada-webhook",
        [
            built.program("webhook"),
            f"--kubeconfig={server.kubeconfig()}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder}",
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
            "--feature-gates=AllAlpha=true,AllBeta=true",
        ],
        server.folder / "karmada-webhook.log",
    )
    program.wait_until(answers(f"https://127.0.0.1:{port}/readyz/", server.ca))
    authority = base64.b64encode(server.authority.pem).decode()

    def hooks(verb: str, kinds: Mapping[str, tuple[str, str]]) -> list[Object]:
        return [
            {
                "name": f"{singular}.karmada.io",
                "rules": [
                    {
                        "operations": ["CREATE", "UPDATE"],
                        "apiGroups": [group],
                        "apiVersions": ["*"],
                        "resources": [kind],
                        "scope": "Cluster" if kind.startswith("cluster") else "Namespaced",
                    }
                ],
                "clientConfig": {
                    "url": f"https://127.0.0.1:{port}/{verb}-{singular}",
                    "caBundle": authority,
                },
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 10,
            }
            for kind, (group, singular) in kinds.items()
        ]

    kubectl.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "karmada"},
            "webhooks": hooks("mutate", _MUTATED),
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "karmada"},
            "webhooks": hooks("validate", _VALIDATED),
        },
    )
    patch = json.dumps({"spec": {"conversion": conversion(kubectl)}})
    for kind in _CONVERTED:
        kubectl("patch", "crd", f"{kind}.work.karmada.io", "--type=merge", "-p", patch)
    return program


def controllers(built: Built, server: ApiServer, flags: Sequence[str] = ()) -> Program:
    health = free_port()
    program = Program(
        "karmada-controller-manager",
        [
            built.program("controller-manager"),
            f"--kubeconfig={server.kubeconfig()}",
            "--cluster-status-update-frequency=2s",
            "--leader-elect=false",
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            "--feature-gates=AllAlpha=true,AllBeta=true",
            *flags,
        ],
        server.folder / "karmada-controller-manager.log",
    )
    program.wait_until(answers(f"http://127.0.0.1:{health}/healthz"))
    return program
