"""What every controller gets from the manager: order, readiness, staleness, shared informers, a good end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry

from karpool.cluster.changes import PutDropSink
from karpool.gpu.controller.controller import GpuScaler
from karpool.kube.errors import Conflict
from karpool.kube.event_recorder import EventRecorder, ObjectReference
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.manager.probes import HealthChecks, probed
from karpool.manager.readiness import ManagerStatus
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import EVENTS, NODES, PODS
from karpool.model.kubernetes.node import Node
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster

Told = list[str]


def play(story: Callable[[EmbeddedCluster], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with EmbeddedCluster("east", clock=LoopClock()) as cluster:
            await story(cluster)

    run_manual(main())


class Counting:
    """Reconciles once a second, and writes down what happens to it."""

    def __init__(self, environment: Environment, told: Told) -> None:
        self.told, self.passes = told, 0
        self._status, self._events = environment.status, environment.events
        nodes = PutDropSink(lambda key, node: told.append(f"saw {key.name}"), lambda key: None)
        again = PutDropSink(lambda key, node: None, lambda key: None)
        kinds = [WatchedKind(NODES, Node, nodes), WatchedKind(NODES, Node, again)]
        self.informers = (InformerSet(environment.client, kinds),)

    async def prepare(self, stack: AsyncExitStack) -> None:
        self.told.append("prepared")
        stack.callback(self.told.append, "closed")

    async def run(self, stop: Stop) -> None:
        self.told.append("runs")
        while await self._status.fresh(stop):
            self.passes += 1
            if await stop.sleep(1.0):
                break
        self._events.record(ObjectReference("v1", "Node", "", "a"), "Normal", "Ended", "in good order")
        self.told.append("ended")


def managed(
    cluster: EmbeddedCluster, told: Told | None = None, *, max_staleness: float = 180.0
) -> tuple[Manager[Counting], Environment]:
    client = cluster.client("counting")
    status = ManagerStatus(max_staleness)
    environment = Environment({"east": client}, EventRecorder(client, "counting"), status=status)
    return Manager(Counting(environment, told if told is not None else []), environment), environment


@asynccontextmanager
async def running(manager: Manager[Counting]) -> AsyncIterator[Counting]:
    async with manager.running() as counting:
        await asyncio.sleep(5)
        yield counting


def test_it_prepares_lists_runs_and_ends_in_this_order() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        await cluster.client("admin").create(NODES, {"metadata": {"name": "a"}})
        told: Told = []
        manager, environment = managed(cluster, told)
        assert manager.not_ready() == "not started"
        async with running(manager):
            assert manager.not_ready() is None
            assert environment.status.staleness() < 60
        assert told == ["prepared", "saw a", "runs", "ended", "closed"]
        assert manager.not_ready() == "stopped"
        written = (await cluster.client("admin").list(EVENTS)).items
        assert [event["reason"] for event in written] == ["Ended"], "events are written before the end"

    play(story)


@pytest.mark.parametrize("status", [403, 503])
def test_a_kind_that_cannot_be_listed_is_named_and_nothing_runs(status: int) -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        fault = cluster.faults.fail("counting", status=status, path="/nodes$")
        manager, _ = managed(cluster)
        async with running(manager) as counting:
            assert "nodes were not listed yet" in (manager.not_ready() or "")
            assert str(status) in (manager.not_ready() or "")
            assert counting.passes == 0
            fault.end()
            await asyncio.sleep(90)
            assert counting.passes > 0

    play(story)


def test_beyond_the_bound_nothing_is_reconciled_and_a_metric_says_so() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        manager, environment = managed(cluster, max_staleness=60.0)
        registry = CollectorRegistry()
        environment.status.follow(registry)
        async with running(manager) as counting:
            assert registry.get_sample_value("karpool_watch_stale") == 0
            fault = cluster.faults.fail("counting", status=500, path="/nodes$")
            cluster.faults.cut_watches("counting")
            await asyncio.sleep(120)
            passes = counting.passes
            await asyncio.sleep(60)
            assert counting.passes == passes
            assert registry.get_sample_value("karpool_watch_stale") == 1
            assert (registry.get_sample_value("karpool_watch_staleness_seconds") or 0) > 60
            assert manager.not_ready() is None, "a restart would not help"
            fault.end()
            await asyncio.sleep(120)
            assert counting.passes > passes
            assert registry.get_sample_value("karpool_watch_stale") == 0

    play(story)


@pytest.mark.parametrize("status", [403, 500])
def test_a_kind_that_fails_after_it_was_listed_is_named_and_readiness_stays(status: int) -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        manager, environment = managed(cluster, max_staleness=300.0)
        health = HealthChecks()
        health.add("readyz", "watches", environment.status.not_ready)
        health.remarks = environment.status.remarks
        async with running(manager):
            assert list(environment.status.remarks()) == []
            fault = cluster.faults.fail("counting", status=status, path="/nodes$")
            cluster.faults.cut_watches("counting")
            await asyncio.sleep(150)  # the client itself tries a failing list for a while
            (remark,) = environment.status.remarks()
            assert "cluster east: nodes: " in remark and f" {status} " in remark
            answer = probed(health, "readyz", make_mocked_request("GET", "/readyz"))
            assert answer.status == 200 and f"[!]{remark}" in (answer.text or "")
            live = probed(health, "livez", make_mocked_request("GET", "/livez"))
            assert live.text == "ok\n"
            await asyncio.sleep(200)
            assert [remark[:7] for remark in environment.status.remarks()] == ["cluster", "paused:"]
            fault.end()
            await asyncio.sleep(120)
            assert list(environment.status.remarks()) == []

    play(story)


def test_whoever_started_it_is_told_what_failed() -> None:
    class Failing(Counting):
        async def run(self, stop: Stop) -> None:
            raise Conflict("PATCH nodes", 409)

    async def story(cluster: EmbeddedCluster) -> None:
        told: Told = []
        manager = Manager.of(cluster.client("counting"), lambda environment: Failing(environment, told))
        with pytest.raises(Conflict):
            await manager.run()
        assert told == ["prepared", "closed"]

    play(story)


def test_two_who_read_a_kind_share_one_informer() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        manager, _ = managed(cluster)
        (informers,) = manager.runnable.informers
        assert [str(informer.resource) for informer in informers.informers] == ["nodes"]

    play(story)


def gpu_scaler(cluster: EmbeddedCluster) -> Manager[GpuScaler]:
    return Manager.of(cluster.client("gpu-scaler"), GpuScaler)


def test_the_gpu_scaler_watches_every_selection_once() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        (informers,) = gpu_scaler(cluster).runnable.informers
        watched = [(informer.resource, informer._selection) for informer in informers.informers]
        assert len(watched) == len(set(watched))
        assert {NODES, PODS, EVENTS} <= {resource for resource, _ in watched}

    play(story)


def test_the_gpu_scaler_is_not_ready_while_an_optional_kind_answers_503() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        fault = cluster.faults.fail("gpu-scaler", status=503, path="/gpus$")
        manager = gpu_scaler(cluster)
        async with manager.running() as scaler:
            await asyncio.sleep(30)
            assert "gpus" in (manager.not_ready() or "")
            assert scaler.steps == 0, "devices are not guessed"
            fault.end()
            await asyncio.sleep(90)
            assert manager.not_ready() is None, "the cluster does not have the kind"
            assert scaler.steps > 0

    play(story)


def test_the_gpu_scaler_takes_no_step_on_an_old_picture() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        manager = gpu_scaler(cluster)
        async with manager.running() as scaler:
            await asyncio.sleep(10)
            cluster.faults.fail("gpu-scaler", status=500)
            cluster.faults.cut_watches("gpu-scaler")
            await asyncio.sleep(240)
            steps = scaler.steps
            await asyncio.sleep(600)
            assert scaler.steps == steps

    play(story)
