"""The certificates between schedulers and estimators are replaced, authority and all, while both serve.

The steps are those of docs/install.md: both authorities are trusted, then both certificates are
replaced, then the old authority goes. Karpool's side of a connection is never restarted;
karmada-scheduler reads its files at its start only, and is.
"""

import socket
import ssl
import urllib.request
from itertools import count
from pathlib import Path

import grpc
import pytest
from tests.kube.pki import Authority

from e2e.asking import Asker, replica
from e2e.components import EstimatorPki
from e2e.kubectl import wait_for
from e2e.processes import Program, free_port
from e2e.scene import Make, Scene
from e2e.workloads import AGGREGATED, HELD_BACK, deployment, policy

NAMES = {"go": "default-scheduler", "karpool": "karpool-scheduler"}
COUNTED = "karmada_scheduler_estimator_estimating_request_total"


class Folder:
    """The files of one side, as a Secret would be mounted; and copies of those it had before."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.pki = EstimatorPki(
            *(folder / name for name in ("ca.crt", "server.crt", "server.key", "client.crt", "client.key"))
        )

    def trusts(self, *authorities: Authority) -> None:
        _replace(self.pki.ca, b"".join(authority.pem for authority in authorities))

    def is_proven_by(self, authority: Authority) -> None:
        server = authority.issue("estimator", hosts=("localhost", "127.0.0.1"))
        client = authority.issue("scheduler")
        _replace(self.pki.server_key, server.key)
        _replace(self.pki.server_certificate, server.certificate)
        _replace(self.pki.client_key, client.key)
        _replace(self.pki.client_certificate, client.certificate)


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


@pytest.mark.parametrize("make", ["karpool", "go"])
def test_a_new_authority_takes_over_while_they_serve(scene: Scene, tmp_path: Path, make: Make) -> None:
    old, new = Authority("old"), Authority("new")
    files = Folder(tmp_path / "files")
    files.trusts(old)
    files.is_proven_by(old)
    before = Folder(tmp_path / "before")
    before.trusts(old)
    before.is_proven_by(old)
    scene.pki = files.pki
    metrics = free_port()
    estimator = scene.estimators("karpool", ["static"], [f"--metrics-bind-address=127.0.0.1:{metrics}"])
    # Every placement asks, over the connection that is looked at here.
    scheduler = scene.scheduler(make, ["--max-room-age=0s"] if make == "karpool" else [])
    namespace = scene.namespace()
    scene.control.kubectl.apply(policy("all", namespace, ["static"], AGGREGATED, NAMES[make], **HELD_BACK))
    port = scene.estimator_ports["static"]

    sizes = count()

    def places(name: str) -> None:
        asked = _asked(metrics)
        # Answers about one size are kept for a second: each has its own.
        scene.control.kubectl.apply(deployment(name, namespace, 1, f"{100 + next(sizes)}m"))
        wait_for(f"{name} placed", lambda: f"{name}-deployment" in scene.control.placements(namespace))
        assert _asked(metrics) > asked, "placed without asking"

    places("at-first")
    files.trusts(old, new)
    places("both-trusted")
    files.is_proven_by(new)
    wait_for("the new certificate is shown", lambda: _is_shown(port, new, files.pki))
    scheduler = _read_again(scene, make, scheduler)
    places("proven-by-the-new")
    files.trusts(new)
    wait_for("the old one is trusted no more", lambda: not _is_answered(port, before.pki, new))
    scheduler = _read_again(scene, make, scheduler)
    places("the-old-is-gone")
    assert scheduler.code is None and estimator["static"].code is None


def _read_again(scene: Scene, make: Make, scheduler: Program) -> Program:
    if make == "karpool":
        return scheduler
    scheduler.stop()
    return scene.scheduler(make)


def _asked(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(COUNTED))


def _is_shown(port: int, authority: Authority, pki: EstimatorPki) -> bool:
    """Whether whoever connects now is shown a certificate of that authority."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.load_cert_chain(pki.client_certificate, pki.client_key)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("localhost", port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except ssl.SSLError:
        return False


def _is_answered(port: int, pki: EstimatorPki, server: Authority) -> bool:
    """Whether a client with those certificates, that trusts the server, gets an answer."""
    asker = Asker("static", port, pki, trusting=server.pem, patient=False)
    try:
        asker.replicas(replica("100m"))
    except grpc.RpcError:
        return False
    finally:
        asker.close()
    return True
