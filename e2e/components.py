"""Karmada's Go programs and Karpool's commands, started the way an operator would start either."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kube.pki import Authority

from e2e.control_plane import ApiServer
from e2e.peers import Built
from e2e.processes import Program, answers, free_port


@dataclass(frozen=True)
class EstimatorPki:
    """Certificates between schedulers and estimators, as files."""

    ca: Path
    server_certificate: Path
    server_key: Path
    client_certificate: Path
    client_key: Path

    def client_flags(self) -> list[str]:
        return [
            f"--scheduler-estimator-ca-file={self.ca}",
            f"--scheduler-estimator-cert-file={self.client_certificate}",
            f"--scheduler-estimator-key-file={self.client_key}",
        ]

    def server_flags(self) -> list[str]:
        return [
            f"--grpc-client-ca-file={self.ca}",
            f"--grpc-auth-cert-file={self.server_certificate}",
            f"--grpc-auth-key-file={self.server_key}",
        ]


def estimator_pki(folder: Path) -> EstimatorPki:
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority("estimators")
    server = authority.issue("estimator", hosts=("localhost", "127.0.0.1"))
    client = authority.issue("scheduler")
    files = {
        "ca.crt": authority.pem,
        "server.crt": server.certificate,
        "server.key": server.key,
        "client.crt": client.certificate,
        "client.key": client.key,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return EstimatorPki(*(folder / name for name in files))


def karpool_command(*arguments: str | Path) -> list[str | Path]:
    return [Path(sys.executable).parent / "karpool", *arguments]


def karpool_controller(
    command: str, server: ApiServer, log: Path, flags: Sequence[str], user: str
) -> Program:
    """A long-running command of ours, ready."""
    health = free_port()
    program = Program(
        f"karpool {command}",
        karpool_command(
            "--verbosity=4",
            command,
            f"--kubeconfig={server.kubeconfig(user)}",
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            *flags,
        ),
        log,
    )
    try:
        program.wait_until(answers(f"http://127.0.0.1:{health}/readyz"))
    except BaseException:
        program.stop()
        raise
    return program


@dataclass
class Estimator:
    program: Program
    port: int


def estimator(
    go: Built | None,
    member: ApiServer,
    pki: EstimatorPki,
    log: Path,
    flags: Sequence[str] = (),
    user: str = "admin",
) -> Estimator:
    """The estimator of a member: Karmada's when its programs are given, else Karpool's."""
    port, health = free_port(), free_port()
    command: list[str | Path] = [go.program("scheduler-estimator")] if go else karpool_command("estimator")
    program = Program(
        f"estimator of {member.name}",
        [
            *command,
            f"--kubeconfig={member.kubeconfig(user)}",
            f"--cluster-name={member.name}",
            f"--server-port={port}",
            *pki.server_flags(),
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            *flags,
        ],
        log,
    )
    ready = "healthz" if go else "readyz"  # the Go binary cannot tell
    program.wait_until(answers(f"http://127.0.0.1:{health}/{ready}"))
    return Estimator(program, port)


def _election(go: Built | None) -> list[str]:
    """The Go programs hold on to their lease when they end, and the next would wait for it."""
    return ["--leader-elect=false"] if go else ["--leader-elect=true"]


def scheduler(
    go: Built | None,
    server: ApiServer,
    pki: EstimatorPki | None,
    log: Path,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    user: str = "admin",
) -> Program:
    """A scheduler of the control plane, asking estimators when it is given certificates for them."""
    health = free_port()
    command: list[str | Path] = [go.program("scheduler")] if go else karpool_command("scheduler")
    asking = ["--enable-scheduler-estimator=true", *pki.client_flags()] if pki else []
    program = Program(
        "karmada-scheduler" if go else "karpool scheduler",
        [
            *command,
            f"--kubeconfig={server.kubeconfig(user)}",
            *_election(go),
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            *asking,
            *flags,
        ],
        log,
        env,
    )
    program.wait_until(answers(f"http://127.0.0.1:{health}/{'healthz' if go else 'readyz'}"))
    return program


def descheduler(
    go: Built | None,
    server: ApiServer,
    pki: EstimatorPki,
    log: Path,
    flags: Sequence[str] = (),
    user: str = "admin",
) -> Program:
    health = free_port()
    command: list[str | Path] = [go.program("descheduler")] if go else karpool_command("descheduler")
    program = Program(
        "karmada-descheduler" if go else "karpool descheduler",
        [
            *command,
            f"--kubeconfig={server.kubeconfig(user)}",
            *_election(go),
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            *pki.client_flags(),
            *flags,
        ],
        log,
    )
    program.wait_until(answers(f"http://127.0.0.1:{health}/healthz"))
    return program
