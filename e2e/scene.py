"""What a scenario starts on the fleet: schedulers, deschedulers and estimators, of either make."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from e2e.components import EstimatorPki, descheduler, estimator, karpool_controller, scheduler
from e2e.karmada import Karmada
from e2e.kubectl import Object, wait_for
from e2e.member import Member
from e2e.peers import Built
from e2e.processes import Program
from e2e.workloads import deployment, policy

Make = Literal["go", "karpool"]
WARNED = "warning from the API server"  # about unknown fields or old versions, in our log
# A machine that is busy answers later than production would wait.
_PATIENT = ("--scheduler-estimator-timeout=30s",)
OVERCOMMIT = "--feature-gates=SchedulingOvercommitProtection=true"


@dataclass
class Scene:
    """Ends what it started when `running` closes; logs go to a folder of its own.

    Karpool's components run as the users that have the shipped roles, Karmada's as admin.
    """

    control: Karmada
    members: dict[str, Member]
    peers: dict[str, Built]
    pki: EstimatorPki
    logs: Path
    running: contextlib.ExitStack
    namespace: Callable[[], str]
    estimator_ports: dict[str, int] = field(default_factory=dict)  # of those started last
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def estimators(
        self, make: Make, names: Sequence[str], flags: Sequence[str] = (), user: str = "estimator"
    ) -> dict[str, Program]:
        """One per named member, known to the schedulers."""
        started = {}
        for name in names:
            one = estimator(
                self._go(make),
                self.members[name].server,
                self.pki,
                self._log(f"estimator-{name}"),
                flags,
                "admin" if make == "go" else user,
            )
            self.running.callback(one.program.stop)
            self.control.estimator_at(name, one.port)
            self.running.callback(self.control.no_estimator_at, name)
            self.estimator_ports[name] = one.port
            started[name] = one.program
        self._announce_for_others()
        return started

    def _announce_for_others(self) -> None:
        """karmada-scheduler waits ten seconds for each member without an estimator before it begins.

        So the others are said to have this one, which answers for its own cluster only.
        """
        port = next(reversed(self.estimator_ports.values()))
        for name in self.members.keys() - self.estimator_ports.keys():
            self.control.estimator_at(name, port)
            self.running.callback(self.control.no_estimator_at, name)

    def scheduler(self, make: Make, flags: Sequence[str] = (), *, asking: bool = True) -> Program:
        started = scheduler(
            self._go(make),
            self.control.server,
            self.pki if asking else None,
            self._log("scheduler"),
            [*(_PATIENT if asking else ()), *flags],
            user="admin" if make == "go" else "scheduler-ours",
        )
        self.running.callback(started.stop)
        return started

    def descheduler(self, make: Make, flags: Sequence[str] = ()) -> Program:
        user = "admin" if make == "go" else "descheduler-ours"
        asking = [*_PATIENT, *flags]
        started = descheduler(
            self._go(make), self.control.server, self.pki, self._log("descheduler"), asking, user
        )
        self.running.callback(started.stop)
        return started

    def karpool(self, command: str, server_of: Member, *flags: str, user: str = "") -> Program:
        """Another long-running command of ours, next to a member, as the user of its name."""
        program = karpool_controller(command, server_of.server, self._log(command), flags, user or command)
        self.running.callback(program.stop)
        return program

    def place(
        self,
        namespace: str,
        workloads: Sequence[Object],
        clusters: Sequence[str],
        scheduling: Object,
        scheduler_name: str,
        **spec: Any,
    ) -> dict[str, dict[str, int]]:
        """Workloads sent one after the other, each when the one before was placed."""
        self.control.kubectl.apply(policy("all", namespace, clusters, scheduling, scheduler_name, **spec))
        for number, workload in enumerate(workloads, 1):
            self.control.kubectl.apply(workload)
            wait_for(
                f"{workload['metadata']['name']} placed",
                lambda wanted=number: len(self.control.placements(namespace)) == wanted,  # type: ignore[misc]
            )
        return self.control.placements(namespace)

    def take_away(self, namespace: str) -> None:
        clear(self.control, self.members.values(), namespace)

    def complaints(self) -> list[str]:
        """What API servers warned Karpool's components of."""
        lines = (line for log in self.logs.glob("*.log") for line in log.read_text().splitlines())
        return [line for line in lines if WARNED in line]

    def _go(self, make: Make) -> Built | None:
        return self.peers["karmada"] if make == "go" else None

    def _log(self, name: str) -> Path:
        return self.logs / f"{next(self._numbers)}-{name}.log"


_MADE_IN_MEMBERS = "deployments,statefulsets,replicasets,jobs,pods,poddisruptionbudgets"


def clear(control: Karmada, members: Iterable[Member], namespace: str) -> None:
    """Take away what a namespace holds, everywhere, and wait until no pod of it is left."""
    control.kubectl("delete", "propagationpolicy,deployment", "--all", "-n", namespace, "--timeout=120s")
    for one in members:
        one.kubectl("delete", _MADE_IN_MEMBERS, "--all", "-n", namespace, "--wait=false")
        wait_for(
            f"no pod of {namespace} in {one.server.name}",
            lambda kubectl=one.kubectl: not kubectl.items("pods", "-n", namespace),  # type: ignore[misc]
        )


def series(namespace: str, sizes: Sequence[int], cpu: str = "300m") -> list[Object]:
    return [deployment(f"w{number}", namespace, size, cpu) for number, size in enumerate(sizes)]
