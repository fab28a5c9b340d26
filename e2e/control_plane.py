"""A real control plane on loopback: etcd, kube-apiserver and, where wanted, its controllers.

Several API servers may share one etcd, each below a prefix of its own. Identities come from
a file of tokens, so that every program and every test can be given exactly the user it needs;
authorisation is RBAC, as in production.
"""

import contextlib
import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.kube.pki import Authority

from e2e.peers import Built
from e2e.processes import Program, answers, free_port

ADMINS = "system:masters"
TESTED = "e2e"  # the group of users that are watched
_AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [e2e]
- level: None
"""


@dataclass
class ApiServer:
    """A running kube-apiserver and what a client needs to reach it."""

    name: str
    url: str
    folder: Path
    ca: Path
    tokens: dict[str, str]
    authority: Authority | None = None  # of one that was started here
    program: Program | None = None
    others: list[Program] = field(default_factory=list)

    def kubeconfig(self, user: str = "admin") -> Path:
        """A kubeconfig file for one of the known users."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(yaml.safe_dump(self._kubeconfig(user)))
        path.chmod(0o600)
        return path

    def audit(self) -> list[dict[str, Any]]:
        """What users without admin rights asked for so far."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def _kubeconfig(self, user: str) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.name,
            "clusters": [
                {"name": self.name, "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}
            ],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": user}}],
        }


class Etcd:
    """An etcd that can be killed and started again with what it had."""

    def __init__(self, built: Built, folder: Path) -> None:
        self.url, self._peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._built, self._folder = built, folder
        shutil.rmtree(folder / "etcd", ignore_errors=True)
        self.start()

    def start(self) -> None:
        self._program = Program(
            "etcd",
            [
                self._built.program("server"),
                f"--data-dir={self._folder / 'etcd'}",
                f"--listen-client-urls={self.url}",
                f"--advertise-client-urls={self.url}",
                f"--listen-peer-urls={self._peer}",
                f"--initial-advertise-peer-urls={self._peer}",
                f"--initial-cluster=default={self._peer}",
                "--unsafe-no-fsync",  # the data lives as long as the test; a process that dies loses none
                "--log-level=warn",
            ],
            self._folder / "etcd.log",
        )
        self._program.wait_until(answers(f"{self.url}/health"))

    def kill(self) -> None:
        self._program.kill()


@contextlib.contextmanager
def etcd(built: Built, folder: Path) -> Iterator[str]:
    """An empty etcd; yields its address."""
    with mortal_etcd(built, folder) as program:
        yield program.url


@contextlib.contextmanager
def mortal_etcd(built: Built, folder: Path) -> Iterator[Etcd]:
    program = Etcd(built, folder)
    try:
        yield program
    finally:
        program.kill()


@contextlib.contextmanager
def api_server(
    built: Built,
    folder: Path,
    etcd_url: str,
    name: str,
    users: Sequence[str] = (),
    flags: Sequence[str] = (),
    *,
    controllers: Sequence[str] | None = None,
    scheduler: bool = False,
) -> Iterator[ApiServer]:
    """A kube-apiserver with its own prefix in etcd, ready to serve.

    `users` get a token each and no rights; `admin` may do everything. `controllers` are those
    of kube-controller-manager to run (None: none of them; empty: its defaults).
    """
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    authority = Authority(f"{name} CA")
    ca = home / "ca.crt"
    ca.write_bytes(authority.pem)
    serving = authority.issue("kube-apiserver", hosts=("127.0.0.1", "localhost", "kubernetes.default.svc"))
    front = authority.issue("front-proxy-client")
    for file, content in {
        "tls.crt": serving.certificate,
        "tls.key": serving.key,
        "front.crt": front.certificate,
        "front.key": front.key,
        "sa.key": _rsa_key(),
    }.items():
        _private(home / file, content)
    tokens = {user: secrets.token_hex(16) for user in ("admin", "controllers", "scheduler", *users)}
    groups = {"admin": ADMINS, "controllers": ADMINS, "scheduler": ADMINS}
    rows = (f'{token},{user},{user},"{groups.get(user, TESTED)}"\n' for user, token in tokens.items())
    _private(home / "tokens.csv", "".join(rows).encode())
    (home / "audit.yaml").write_text(_AUDIT)
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    program = Program(
        f"kube-apiserver of {name}",
        [
            built.program("kube-apiserver"),
            f"--etcd-servers={etcd_url}",
            f"--etcd-prefix=/{name}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={home / 'tls.crt'}",
            f"--tls-private-key-file={home / 'tls.key'}",
            f"--client-ca-file={ca}",
            f"--token-auth-file={home / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={home / 'sa.key'}",
            f"--service-account-signing-key-file={home / 'sa.key'}",
            f"--requestheader-client-ca-file={ca}",
            "--requestheader-allowed-names=front-proxy-client",  # 1.36 insists: all have one CA
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={home / 'front.crt'}",
            f"--proxy-client-key-file={home / 'front.key'}",
            f"--audit-policy-file={home / 'audit.yaml'}",
            f"--audit-log-path={home / 'audit.log'}",
            *flags,
        ],
        home / "kube-apiserver.log",
    )
    server = ApiServer(name, url, home, ca, tokens, authority, program)
    try:
        program.wait_until(answers(f"{url}/readyz", ca, tokens["admin"]))
        if controllers is not None:
            server.others.append(_controller_manager(built, server, controllers))
        if scheduler:
            server.others.append(_scheduler(built, server))
        yield server
    finally:
        for other in (*reversed(server.others), program):
            other.kill()  # what it holds ends with it


def _controller_manager(built: Built, server: ApiServer, controllers: Sequence[str]) -> Program:
    config = server.kubeconfig("controllers")
    port = free_port()
    chosen = [f"--controllers={','.join(controllers)}"] if controllers else []
    program = Program(
        f"kube-controller-manager of {server.name}",
        [
            built.program("kube-controller-manager"),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--service-account-private-key-file={server.folder / 'sa.key'}",
            f"--root-ca-file={server.ca}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={server.folder / 'tls.crt'}",
            f"--tls-private-key-file={server.folder / 'tls.key'}",
            "--leader-elect=false",
            "--use-service-account-credentials=false",
            *chosen,
        ],
        server.folder / "kube-controller-manager.log",
    )
    program.wait_until(answers(f"https://127.0.0.1:{port}/healthz", server.ca, server.tokens["admin"]))
    return program


def _scheduler(built: Built, server: ApiServer) -> Program:
    config = server.kubeconfig("scheduler")
    port = free_port()
    program = Program(
        f"kube-scheduler of {server.name}",
        [
            built.program("kube-scheduler"),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={server.folder / 'tls.crt'}",
            f"--tls-private-key-file={server.folder / 'tls.key'}",
            "--leader-elect=false",
        ],
        server.folder / "kube-scheduler.log",
    )
    program.wait_until(answers(f"https://127.0.0.1:{port}/healthz", server.ca, server.tokens["admin"]))
    return program


def _private(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def _rsa_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def crds_of(source: Path) -> Iterator[dict[str, Any]]:
    """The CustomResourceDefinitions in the YAML files below a folder of a peer's module."""
    for file in sorted(source.rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if isinstance(document, dict) and document.get("kind") == "CustomResourceDefinition":
                yield json.loads(json.dumps(document, default=str))
