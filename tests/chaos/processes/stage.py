"""A company (`tests/chaos/company.py`) whose controllers are processes: three replicas of each.

The embedded clusters run in this process, in real time, so the jury sees every write at the moment it is
made. Between every replica and its API server is a proxy of its own, and one between the schedulers and
the estimators of each member.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from e2e.processes import free_port

from karpool.kube.errors import AlreadyExists
from karpool.model.kubernetes.api_resources import NAMESPACES, SERVICES
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.clusters.estimators import Estimators
from karpool_fleet.clusters.fleet import EmbeddedFleet
from tests.chaos.company import KARMADA, MOST, Company, fleet_file
from tests.chaos.judging import Jury
from tests.chaos.processes.fault_proxy import FaultProxy
from tests.chaos.processes.lease_judge import LeaseJudge
from tests.chaos.processes.network_faults import NetworkWeather
from tests.chaos.processes.replica_process import UNLIMITED, Limits, ReplicaProcess, WallClock, context
from tests.chaos.processes.stream_proxy import StreamProxy

SYSTEM = "karmada-system"
SERVICE_PORT = 10352
# Where each controller works. GPUs are scaled where there are GPUs; nodes are sold by consolidators only.
CONTROLLERS = (
    (KARMADA, "scheduler"),
    (KARMADA, "descheduler"),
    ("grows", "consolidator"),
    ("gpu", "gpu-scaler"),
    ("gpu", "consolidator"),
    ("fixed", "estimator"),
    ("grows", "estimator"),
)
MEMBERS = ("fixed", "grows")
# As in production but for what a story would have to wait for.
_ASKING = {"enable-scheduler-estimator": "true", "scheduler-estimator-timeout": "2s"}
FLAGS: Mapping[str, Mapping[str, str]] = {
    "estimator": {
        "feature-gates": "SchedulingOvercommitProtection=true",
        "node-capacity-providers": "karpenter",
        "failure-threshold": "1m",
        "recovery-interval": "30s",
    },
    "scheduler": {**_ASKING, "unschedulable-retry": "15s"},
    "descheduler": {
        **_ASKING,
        "descheduling-interval": "10s",
        "unschedulable-threshold": "1m",
        "cool-down": "30s",
    },
    "consolidator": {"settle": "5s", "quiet-period": "5s", "launch-timeout": "2m", "interval": "5s"},
    "gpu-scaler": {"debounce": "2s", "accept-unenforced-shares": ""},
}


@dataclass
class Line:
    """A replica, its weather and its proxy."""

    controller: str  # "karmada/scheduler"
    process: ReplicaProcess
    weather: NetworkWeather
    proxy: FaultProxy

    @property
    def is_well(self) -> bool:
        """Runs, lacks nothing, and reaches its API server."""
        process = self.process
        starved = process.limits != UNLIMITED
        return process.is_running and not process.is_stopped and not starved and self.weather.is_fair


@dataclass
class Stage:
    company: Company
    judge: LeaseJudge
    lines: dict[str, Line]
    estimators: dict[str, StreamProxy]  # of members
    folder: Path
    due: dict[str, float] = field(default_factory=dict)  # when replicas that ended are started again
    restarts: int = 0

    def leader(self, controller: str) -> Line | None:
        holder = self.judge.leases[controller].holder
        for name, line in self.lines.items():
            if line.controller == controller and holder and self.judge.identities.get(name) == holder:
                return line
        return None

    def of(self, controller: str) -> list[Line]:
        return [line for line in self.lines.values() if line.controller == controller]

    @property
    def controllers(self) -> list[str]:
        return list(dict.fromkeys(line.controller for line in self.lines.values()))

    @property
    def violations(self) -> list[str]:
        return [*self.company.jury.violations, *self.judge.violations]

    def revive(self, delay: float = 1.0, limits: Callable[[], Limits] = lambda: UNLIMITED) -> None:
        """Start again what has ended, a while after its end, as a kubelet would."""
        self.judge.look([name for name, line in self.lines.items() if line.is_well])
        now = time.monotonic()
        for name, line in self.lines.items():
            if line.process.is_running:
                self.due.pop(name, None)
            elif now >= self.due.setdefault(name, now + delay):
                line.process.start(limits())
                self.restarts += 1

    async def led(self, within: float = 300.0) -> None:
        """Until somebody leads each controller and every estimator listens."""
        end = time.monotonic() + within
        while waiting := await self._without_a_leader():
            assert time.monotonic() < end, f"nobody leads {', '.join(waiting)}; logs are in {self.folder}"
            self.revive()
            await asyncio.sleep(0.2)

    async def _without_a_leader(self) -> list[str]:
        waiting = [
            controller
            for controller, lease in self.judge.leases.items()
            if not lease.holder and not controller.endswith("/estimator")
        ]
        for port in (_PORTS[name] for name in self.lines if "/estimator/" in name):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
            except OSError:
                waiting.append(f"port {port}")
        return waiting

    async def calm(self, within: float) -> list[str]:
        """What is still not as it must be at the end of that time; nothing, as soon as nothing is."""
        end = time.monotonic() + within
        while True:
            self.revive()
            self.company.revive()
            wrong = [*self.company.jury.when_calm(), *self.judge.violations]
            (self.folder / "waiting-for.txt").write_text("\n".join([*self.company.told, "", *wrong]))
            if not wrong or time.monotonic() > end:
                return wrong
            await asyncio.sleep(1)


@asynccontextmanager
async def stage(
    folder: Path,
    seed: int,
    *,
    replicas: int = 3,
    controllers: Sequence[tuple[str, str]] = CONTROLLERS,
    flags: Mapping[str, Mapping[str, str]] = FLAGS,
) -> AsyncIterator[Stage]:
    """Everything is started, and ended at the end."""
    juries: list[Jury] = []

    def furnish(fleet: EmbeddedFleet) -> None:
        jury = Jury(fleet, MOST)
        jury.schedulers = None  # what they promise is in other processes
        juries.append(jury)

    clock = LoopClock(time.time() - asyncio.get_running_loop().time())
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(EmbeddedFleet(fleet_file(seed), clock, furnish=furnish))
        company = Company(fleet, juries[0], Estimators())
        urls = {}
        for name, cluster in fleet.api_servers.items():
            listening = await serve(cluster.server)
            stack.push_async_callback(listening.close)
            urls[name] = listening.url
        names = {
            f"{cluster}/{command}/{number}": f"{cluster}/{command}"
            for cluster, command in controllers
            for number in range(replicas)
        }
        judge = LeaseJudge(names)
        made = Stage(company, judge, {}, {}, folder)
        stack.callback(_end, made)
        await _estimator_lines(stack, made, names, seed)
        forks = context()
        for name, controller in names.items():
            made.lines[name] = await _line(stack, made, forks, name, controller, urls, flags, seed)
        for line in made.lines.values():
            line.process.start()
        yield made


def _end(made: Stage) -> None:
    for line in made.lines.values():
        line.process.kill()
    for line in made.lines.values():
        line.process.join()


_PORTS: dict[str, int] = {}


async def _estimator_lines(stack: AsyncExitStack, made: Stage, names: Mapping[str, str], seed: int) -> None:
    admin = made.company.karmada.client("admin")
    with suppress(AlreadyExists):
        await admin.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    for member in MEMBERS:
        backends = [name for name, controller in names.items() if controller == f"{member}/estimator"]
        if not backends:
            continue
        for name in backends:
            _PORTS[name] = free_port()
        weather = NetworkWeather(Random(f"{seed}/{member}/grpc"))
        proxy = StreamProxy([_PORTS[name] for name in backends], weather)
        await proxy.start()
        stack.push_async_callback(proxy.close)
        made.estimators[member] = proxy
        await admin.create(SERVICES, _service(member, proxy.port))


def _service(member: str, port: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"karmada-scheduler-estimator-{member}", "namespace": SYSTEM},
        "spec": {
            "type": "ExternalName",
            "externalName": "127.0.0.1",
            "ports": [{"port": SERVICE_PORT, "targetPort": port, "protocol": "TCP"}],
        },
    }


async def _line(
    stack: AsyncExitStack,
    made: Stage,
    forks: Any,
    name: str,
    controller: str,
    urls: Mapping[str, str],
    flags: Mapping[str, Mapping[str, str]],
    seed: int,
) -> Line:
    cluster, command = controller.split("/")
    weather = NetworkWeather(Random(f"{seed}/{name}/http"))
    proxy = FaultProxy(urls[cluster], weather, replica=name, observer=made.judge)
    await proxy.start()
    stack.push_async_callback(proxy.close)
    file_name = name.replace("/", "-")
    kubeconfig = made.folder / f"{file_name}.kubeconfig"
    write_kubeconfig(kubeconfig, [EmbeddedClusterEntry(cluster, proxy.url)])
    given = {
        **flags[command],
        "kubeconfig": str(kubeconfig),
        "metrics-bind-address": "0",
        "health-probe-bind-address": "0",
    }
    if command == "estimator":
        given |= {"cluster-name": cluster, "server-port": str(_PORTS[name])}
    words = [
        "--verbosity=1",
        command,
        *(f"--{key}={value}" if value else f"--{key}" for key, value in given.items()),
    ]
    clock = WallClock(made.folder / f"{file_name}.clock")
    return Line(controller, ReplicaProcess(forks, name, words, made.folder, clock), weather, proxy)
