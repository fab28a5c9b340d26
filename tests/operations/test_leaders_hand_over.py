"""Of two replicas one acts. Whatever becomes of it, the other acts within 20 s, and nothing is done twice."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.controller import Consolidator
from karpool.consolidation.execution.record import MovePhase
from karpool.kube.api.client import Client
from karpool.kube.leases import Leadership, LeaseElector, lead
from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import LEASES, NAMESPACES
from karpool.scheduler.controller.controller import Scheduler
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.runtime.supervisor import Context
from tests.consolidation import executing
from tests.fleet.karpenter.acting import catalogue
from tests.scheduler import acting
from tests.scheduler.acting import Stage, binding

NAMESPACE = "karpool-system"
MOST_SECONDS = 20.0
Act = Callable[[Leadership, asyncio.Event], Awaitable[None]]


class Replica:
    """A process as the fleet runs it: it campaigns, and acts while it leads."""

    def __init__(self, context: Context, name: str, act: Act) -> None:
        self._elector = LeaseElector(context.client, "controller", namespace=NAMESPACE, identity=name)
        self._act = act
        self.stop = Stop()

    async def run(self) -> None:
        await lead(self._elector, lambda leadership: self._act(leadership, self.stop), self.stop)


class Results:
    """How often each binding was given a result; a second one is a double action."""

    def __init__(self, stage: Stage) -> None:
        self.of: Counter[str] = Counter()
        stage.control.server.cluster.store.listeners.append(self._on_change)

    def _on_change(self, event: StoredEvent) -> None:
        if not event.record.collection.group_resource.startswith("resourcebindings."):
            return
        before = event.previous.object()["spec"].get("clusters") if event.previous is not None else None
        now = event.record.object()
        self.of[now["metadata"]["name"]] += now["spec"].get("clusters") != before


async def holder(admin: Client) -> str:
    lease = await admin.get(LEASES, "controller", namespace=NAMESPACE)
    return str(lease["spec"]["holderIdentity"])


@pytest.mark.long
@pytest.mark.parametrize("end", ["asked to stop", "killed", "stopped for a minute"])
def test_bindings_are_placed_once_each_whatever_becomes_of_the_leader(end: str) -> None:
    async def story(stage: Stage) -> None:
        replicas: dict[str, Replica] = {}
        writes: list[tuple[float, str]] = []  # when who was about to write

        def start(name: str) -> None:
            def build(context: Context) -> Replica:
                async def act(leadership: Leadership, stop: Stop) -> None:
                    def check() -> None:
                        leadership.check()
                        writes.append((stage.clock.monotonic(), name))

                    await Manager.of(context.client, Scheduler, check=check).run(stop)

                replicas[name] = Replica(context, name, act)
                return replicas[name]

            stage.control.add(name, build)

        await stage.admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await stage.join("member", cpu=1000)
        results = Results(stage)
        start("one")
        await asyncio.sleep(1)
        start("other")
        for number in range(80):
            await stage.create(binding(f"web-{number}"))
            await asyncio.sleep(0.5)
            if number == 20:
                assert await holder(stage.admin) == "one"
                if end == "asked to stop":
                    replicas["one"].stop.set()
                elif end == "killed":
                    stage.control.components.kill("one")
                else:
                    stage.control.faults.pause("one")
        await stage.until_placed(*(f"web-{number}" for number in range(80)))
        stage.control.faults.resume("one")
        await asyncio.sleep(60)

        assert set(results.of.values()) == {1} and len(results.of) == 80
        taken_over = next(time for time, by in writes if by == "other")
        last = max(time for time, by in writes if by == "one")
        assert 0 < taken_over - last < (3.0 if end == "asked to stop" else MOST_SECONDS)

    acting.play(story)


@pytest.mark.long
@pytest.mark.parametrize("phase", [MovePhase.WAITING, MovePhase.DELETING], ids=str)
def test_a_move_is_made_once_when_its_leader_stands_still(phase: MovePhase) -> None:
    async def story(p: executing.Play) -> None:
        def start(name: str) -> None:
            def build(context: Context) -> Replica:
                async def act(leadership: Leadership, stop: Stop) -> None:
                    market = Market(catalogue())
                    check = leadership.check
                    manager = Manager.of(
                        context.client,
                        lambda env: Consolidator(env, p.options, market=market),
                        check=check,
                    )
                    await manager.run(stop)

                return Replica(context, name, act)

            p.stage.cluster.add(name, build)

        await p.too_large()
        await p.stage.admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        start("one")
        await asyncio.sleep(1)
        start("other")
        await p.reached(phase)
        p.stage.cluster.faults.pause("one")

        async def led_by_the_other() -> bool:
            return await holder(p.stage.admin) == "other"

        await p.until(led_by_the_other, seconds=MOST_SECONDS)
        records = await p.over()
        p.stage.cluster.faults.resume("one")

        assert await p.steady(120)
        assert [record.phase for record in records] == [MovePhase.DONE]
        assert p.budgets.deletions == 1
        assert await p.types() == ["small"] and await p.leaks() == []

    executing.play(story)
