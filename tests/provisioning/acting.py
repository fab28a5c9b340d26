"""Words for stories about asking Karpenter for nodes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from karpool.fleet.clock import run_manual
from karpool.kube.client import Client
from karpool.kube.informer import Informer
from karpool.kube.watched import Watched
from karpool.model.node import INSTANCE_TYPE, Node
from karpool.provisioning.ask import Ask, Candidate, Purpose, unit
from karpool.provisioning.claim_monitor import ClaimMonitor
from karpool.provisioning.groundwork import prepare
from karpool.provisioning.placeholders import Outlook, Placeholder
from karpool.provisioning.smart_pod import SmartPodSettings
from karpool.provisioning.smart_pod_manager import SmartPods
from karpool.provisioning.stages import Progress
from tests.fleet.karpenter.acting import GIB, Stage, staged

GPU = {"cpu": 500, "memory": GIB, "nvidia.com/gpu": 1}
ACCELERATED = Candidate(pools=("gpu",), instance_types=("accelerated",))
SETTINGS = SmartPodSettings()


def ask(request: str = "scaleup-1", units: int = 1, **changes: Any) -> Ask:
    given: dict[str, Any] = {
        "request": request,
        "epoch": 1,
        "units": (unit(changes.pop("resources", GPU)),) * units,
        "candidates": (ACCELERATED,),
        "pool": "shared",
        "model": "NVIDIA A100-SXM4-80GB",
        "demand": ("uid-1",),
    }
    return Ask(**(given | changes))


def replacement(type_: str, **changes: Any) -> Ask:
    """One node of a pool, for what consolidation moves."""
    candidate = Candidate(pools=("general",), instance_types=(type_,), capacity_types=("on-demand",))
    given: dict[str, Any] = {"purpose": Purpose.REPLACEMENT, "model": "", "pool": "general"}
    given |= {"candidates": (candidate,), "resources": {"cpu": 1000, "memory": GIB}}
    return ask("move-1", **(given | changes))


@dataclass
class Desk:
    """What a controller holds: a monitor and a backend, fed by its own informers."""

    client: Client
    monitor: ClaimMonitor
    pods: SmartPods
    told: list[Progress] = field(default_factory=list)

    def one(self) -> Placeholder:
        (found,) = self.pods.placeholders()
        return found

    async def reached(
        self, stage: Stage, outlook: Outlook, *, count: int = 1, seconds: float = 600.0
    ) -> None:
        """Until there are so many placeholders, and all have come so far."""

        async def all_have() -> bool:
            found = self.pods.placeholders()
            return len(found) == count and all(each.outlook is outlook for each in found)

        await stage.until(all_have, seconds=seconds)


@asynccontextmanager
async def followed(client: Client, watches: Iterable[Watched[Any]]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        informers = []
        for each in watches:
            informer = Informer(client, each.resource, into=each.into, selection=each.selection, keep=False)
            informer.add_sink(each.sink)
            informers.append(informer)
        tasks = [group.create_task(informer.run()) for informer in informers]
        try:
            for informer in informers:
                await informer.synced.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def desk(stage: Stage, settings: SmartPodSettings = SETTINGS) -> AsyncIterator[Desk]:
    client = stage.cluster.client("desk")
    assert await prepare(client, settings) == []
    monitor = ClaimMonitor(stage.cluster.clock)
    pods = SmartPods(client, settings, monitor)
    found = Desk(client, monitor, pods)
    monitor.on_stage.append(found.told.append)
    async with followed(client, (*monitor.watches, *pods.watches)):
        yield found


def play(story: Callable[[Stage, Desk], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    settings = options.pop("settings", SETTINGS)

    async def main() -> Any:
        async with staged(**options) as stage, desk(stage, settings) as found:
            return await story(stage, found)

    return run_manual(main())


async def node_named(stage: Stage, name: str) -> Node:
    return next(node for node in await stage.nodes() if node.name == name)


def types_of(nodes: Iterable[Node]) -> list[str]:
    return sorted(node.labels[INSTANCE_TYPE] for node in nodes)
