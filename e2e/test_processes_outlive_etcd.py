"""Three replicas of each controller on a real kube-apiserver, while they and its etcd are killed.

As `tests/chaos/processes`, with the same proxies and judges. The members are only known by what
Cluster objects say, so that nothing but schedulers gives room away, and it can be counted on fingers.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.chaos.processes.fault_proxy import FaultProxy
from tests.chaos.processes.http_messages import ProxiedRequest
from tests.chaos.processes.lease_judge import LeaseJudge
from tests.chaos.processes.network_faults import NetworkWeather, Trouble
from tests.chaos.processes.replica_process import ReplicaProcess, WallClock, context

from e2e.bench_real_loading import talking
from e2e.control_plane import mortal_etcd
from e2e.karmada import Karmada, karmada
from e2e.peers import Built
from karpool.model.kubernetes.api_resources import CLUSTERS, RESOURCEBINDINGS
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig

COMMANDS = ("scheduler", "descheduler", "consolidator", "gpu-scaler")
REPLICAS = 3
CORES = 12  # of each member; every replica asks for one
MEMBERS = ("east", "west")
BINDINGS, SIZE = 12, 3  # 36 wanted, 24 fit: eight bindings of twelve
# Rounds of twelve kills, eight pauses and one death of etcd; `make chaos` asks for more than e2e.
ROUNDS = int(os.environ.get("KARPOOL_CHAOS_ROUNDS", "1"))
PATIENCE = 300.0
_FLAGS = {
    # Nothing ever lands, so promises must last as long as the story.
    "scheduler": {"assumption-ttl": "2h", "assumption-ttl-limit": "2h", "unschedulable-retry": "10s"},
    "descheduler": {"enable-scheduler-estimator": "false"},
}
Object = dict[str, Any]


class Judge(LeaseJudge):
    """Also sees every placement that a scheduler writes."""

    def __init__(self, controllers: Mapping[str, str]) -> None:
        super().__init__(controllers)
        self.given: dict[str, tuple[int, dict[str, int]]] = {}  # by binding: version and targets

    def answered(self, replica: str, request: ProxiedRequest, status: int, body: bytes) -> None:
        super().answered(replica, request, status, body)
        if request.is_write and 200 <= status < 300 and "/resourcebindings/" in request.path:
            self._placed(msgspec.json.decode(body))

    def _placed(self, binding: Object) -> None:
        meta = binding["metadata"]
        name, version = meta["name"], int(meta["resourceVersion"])
        if version <= self.given.get(name, (0, {}))[0]:
            return
        self.given[name] = (version, _targets(binding))
        for member, total in self.totals().items():
            if total > CORES:
                self.violations.append(f"{name} makes {total} in {member}, which has room for {CORES}")

    def totals(self) -> dict[str, int]:
        return {
            member: sum(targets.get(member, 0) for _, targets in self.given.values()) for member in MEMBERS
        }


def _targets(binding: Object) -> dict[str, int]:
    return {each["name"]: each.get("replicas", 0) for each in binding["spec"].get("clusters") or ()}


class Crew:
    def __init__(self, judge: Judge, draw: Random) -> None:
        self.judge, self.draw = judge, draw
        self.replicas: dict[str, ReplicaProcess] = {}
        self.weather: dict[str, NetworkWeather] = {}
        self.kills = self.pauses = 0

    def revive(self) -> None:
        for replica in self.replicas.values():
            if not replica.is_running:
                replica.start()

    def victim(self) -> ReplicaProcess:
        """A leader, or any other."""
        self.revive()
        command = self.draw.choice(COMMANDS)
        holder = self.judge.leases[command].holder
        names = [name for name in self.replicas if name.startswith(f"{command}/")]
        leading = [name for name in names if holder and self.judge.identities.get(name) == holder]
        return self.replicas[self.draw.choice(leading if leading and self.draw.random() < 0.6 else names)]

    def kill(self) -> None:
        self.kills += self.victim().kill()

    def stop(self) -> ReplicaProcess:
        victim = self.victim()
        self.pauses += victim.stop()
        return victim

    async def led(self) -> None:
        await self.until(lambda: all(lease.holder for lease in self.judge.leases.values()), "everybody leads")

    async def until(self, condition: Any, what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert not self.judge.violations, self.judge.violations
            assert time.monotonic() < end, f"{what}: not within {PATIENCE:g} s; {self.judge.totals()}"
            self.revive()
            await asyncio.sleep(0.2)


@asynccontextmanager
async def crew(control: Karmada, folder: Path, seed: int) -> AsyncIterator[Crew]:
    names = {f"{command}/{number}": command for command in COMMANDS for number in range(REPLICAS)}
    made = Crew(Judge(names), Random(f"{seed}/crew"))
    server, forks = control.server, context()
    trust = ssl.create_default_context(cafile=str(server.ca))
    async with AsyncExitStack() as stack:
        for name, command in names.items():
            weather = made.weather[name] = NetworkWeather(Random(f"{seed}/{name}"))
            proxy = FaultProxy(
                server.url,
                weather,
                replica=name,
                observer=made.judge,
                tls=trust,
                token=server.tokens["admin"],
            )
            await proxy.start()
            stack.push_async_callback(proxy.close)
            file = folder / f"{name.replace('/', '-')}.kubeconfig"
            write_kubeconfig(file, [EmbeddedClusterEntry("karmada", proxy.url)])
            flags = {
                "kubeconfig": str(file),
                "metrics-bind-address": "0",
                "health-probe-bind-address": "0",
                **_FLAGS.get(command, {}),
            }
            words = ["--verbosity=1", command, *(f"--{key}={value}" for key, value in flags.items())]
            clock = WallClock(file.with_suffix(".clock"))
            made.replicas[name] = ReplicaProcess(forks, name, words, folder, clock)
        stack.callback(_end, made)
        made.revive()
        yield made


def _end(made: Crew) -> None:
    for replica in made.replicas.values():
        replica.kill()
    for replica in made.replicas.values():
        replica.join()


async def _furnish(control: Karmada) -> None:
    kinds = {"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "ClusterReady",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    room = {"cpu": str(CORES), "memory": "400Gi", "pods": "1000"}
    status = {"apiEnablements": [kinds], "conditions": [ready], "resourceSummary": {"allocatable": room}}
    async with talking(control.server) as client:
        for name in MEMBERS:
            spec = {"syncMode": "Push", "apiEndpoint": f"https://{name}.invalid"}
            await client.create(CLUSTERS, {"metadata": {"name": name}, "spec": spec})
            await client.patch(CLUSTERS, name, {"status": status}, subresource="status")


def _binding(number: int) -> Object:
    name = f"w{number}"
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"propagationpolicy.karmada.io/permanent-id": "chaos"},
        },
        "spec": {
            "schedulerName": "karpool-scheduler",
            "replicas": SIZE,
            "replicaRequirements": {"resourceRequest": {"cpu": "1", "memory": "1Gi"}},
            "resource": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "namespace": "default",
                "name": name,
                "uid": f"uid-{name}",
            },
            "placement": {
                "replicaScheduling": {
                    "replicaSchedulingType": "Divided",
                    "replicaDivisionPreference": "Aggregated",
                }
            },
        },
    }


@pytest.fixture
def folder(place: Path) -> Path:
    made = place / "chaos"
    (made / "replicas").mkdir(parents=True)
    return made


async def test_nothing_is_given_away_twice_while_replicas_and_etcd_die(
    peers: dict[str, Built], folder: Path
) -> None:
    with (
        mortal_etcd(peers["etcd"], folder) as store,
        karmada(peers, folder, store.url, propagates=False) as control,
    ):
        await _furnish(control)
        async with crew(control, folder / "replicas", seed=1) as at:
            await at.led()
            for number in range(ROUNDS):
                await _burst(control, at, number)
                await asyncio.to_thread(store.kill)
                await asyncio.sleep(at.draw.choice((1.0, 4.0, 16.0)))  # short, and longer than a lease
                await asyncio.to_thread(store.start)
            await at.led()
            fitting = len(MEMBERS) * CORES
            await at.until(lambda: sum(at.judge.totals().values()) == fitting, "all room is given away")
            assert at.judge.violations == []
            assert await _stored(control) == at.judge.totals()
            assert (at.kills, at.pauses) == (12 * ROUNDS, 8 * ROUNDS)


async def _burst(control: Karmada, at: Crew, number: int) -> None:
    """Bindings come while replicas are killed, stopped and cut off."""
    stopped: list[tuple[float, ReplicaProcess]] = []
    strokes = ["kill"] * 12 + ["stop"] * 8
    at.draw.shuffle(strokes)
    async with talking(control.server) as client:
        for step, stroke in enumerate(strokes):
            if number == 0 and step < BINDINGS:
                await client.create(RESOURCEBINDINGS, _binding(step))
            if stroke == "kill":
                at.kill()
            else:
                stopped.append((time.monotonic() + at.draw.choice((1.0, 4.0, 11.0, 17.0)), at.stop()))
            weather = at.weather[at.draw.choice(list(at.weather))]
            active = weather.begin(at.draw.choice(list(Trouble)), share=0.5, seconds=0.5)
            await asyncio.sleep(at.draw.uniform(0.3, 1.5))
            weather.end(active)
            for when, replica in list(stopped):
                if time.monotonic() > when:
                    stopped.remove((when, replica))
                    replica.wake()
            at.revive()
    for _, replica in stopped:
        replica.wake()


async def _stored(control: Karmada) -> dict[str, int]:
    async with talking(control.server) as client:
        bindings = (await client.list(RESOURCEBINDINGS)).items
    return {member: sum(_targets(each).get(member, 0) for each in bindings) for member in MEMBERS}
