"""Whoever asks may die at any write, and the API may be in bad weather: as many nodes, and no pod left."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from karpool.kube.errors import KubeError
from karpool.model.kubernetes.api_resources import NAMESPACES, PODS
from karpool.model.kubernetes.pod import Pod
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.placeholders.placeholder import PlaceholderState
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend
from karpool.provisioning.placeholders.writes import DeleteBackoff
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.runtime.supervisor import Context
from tests.fleet.karpenter.acting import GIB, Stage, staged
from tests.provisioning.acting import SETTINGS, followed, replacement

UNITS = 3
WANTED = replacement("large", units=UNITS, resources={"cpu": 4000, "memory": GIB})
DONE = "karpool.dev/test-done"


class Asker:
    """Asks for room until nodes are there, then takes its pods back; a Namespace says that it is done.

    As a controller would, it notes the end before it acts on it, and decides anew every second.
    """

    def __init__(self, context: Context) -> None:
        self._client, self._clock = context.client, context.clock
        self._pace = DeleteBackoff()

    async def run(self) -> None:
        monitor = ClaimMonitor(self._clock)
        pods = SmartPodBackend(self._client, SETTINGS, monitor)
        async with followed(self._client, (*monitor.watches, *pods.watches)):
            while True:
                with suppress(KubeError):  # the next step sees what is
                    await self._step(pods)
                await self._clock.sleep(1)

    async def _step(self, pods: SmartPodBackend) -> None:
        await ensure_prerequisites(self._client, SETTINGS)
        space = await self._client.get(NAMESPACES, SETTINGS.namespace)
        found = pods.placeholders()
        if DONE in (space["metadata"].get("annotations") or {}):
            for each in found:
                if self._pace.is_due(each, self._clock.now()):
                    self._pace.tried(each, self._clock.now())
                    await pods.withdraw(each)
        elif len(found) == UNITS and all(each.outlook is PlaceholderState.THERE for each in found):
            done = {"metadata": {"annotations": {DONE: "true"}}}
            await self._client.patch(NAMESPACES, SETTINGS.namespace, done)
        elif missing := set(range(UNITS)) - {each.index for each in found}:
            await pods.request(WANTED, WANTED.candidates[0], missing)


async def asked(stage: Stage) -> None:
    await stage.pool("general", types=("large",), disruption={"consolidateAfter": "Never"})
    stage.cluster.add("asker", Asker)

    async def over() -> bool:
        if not stage.cluster.components.is_running("asker"):
            stage.crashes += 1
            stage.cluster.components.start("asker")
        smart = (await stage.admin.list(PODS, into=Pod)).items
        assert len(smart) <= UNITS, "never more than were asked for"
        return bool(await stage.nodes()) and not smart

    await stage.until(over, seconds=900)
    # 4 CPU each: one per node of 7.9; nothing was bought twice, and nothing was taken away.
    assert len(await stage.nodes()) == len(await stage.claims()) == UNITS
    await asyncio.sleep(20)
    assert await stage.all_pods() == [], "and none comes back"


def play(before: Callable[[Stage], object] | None = None) -> Stage:
    async def main() -> Stage:
        async with staged() as stage:
            if before is not None:
                before(stage)
            await asked(stage)
            return stage

    return run_manual(main())


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_changes_nothing(when: str) -> None:
    for number in count(1):
        stage = play(lambda stage, n=number: stage.cluster.faults.crash_at_write("asker", n, when=when))  # type: ignore[misc]
        if stage.crashes == 0:
            break
    # Namespace, class, three pods, the note, three deletions; the writes of pods overlap.
    assert number >= 9


def test_bad_weather_changes_nothing() -> None:
    def storm(stage: Stage) -> None:
        faults = stage.cluster.faults
        faults.fail("asker", status=409, method="WRITE", times=3)
        faults.fail("asker", status=503, method="WRITE", times=3)
        faults.fail("asker", status=0, method="WRITE", times=3)
        faults.fail("asker", status=500, method="GET", times=3)
        faults.repeat_events("asker")
        faults.late_events("asker", seconds=3, times=20)
        faults.stale_reads("asker", seconds=5, path="/namespaces/")

    play(storm)


@pytest.mark.long
def test_events_that_got_lost_are_made_up_for_by_the_next_list() -> None:
    def deaf(stage: Stage) -> None:
        lost = stage.cluster.faults.lose_events("asker", path="/pods")

        def hear() -> None:
            lost.end()
            stage.cluster.faults.cut_watches("asker", expired=True)

        asyncio.get_running_loop().call_later(120, hear)

    play(deaf)
