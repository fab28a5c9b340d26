"""Words for stories about asking Karpenter for nodes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.watch.informer import Informer
from karpool.kube.watched import WatchedKind
from karpool.model.kubernetes.node import INSTANCE_TYPE, Node
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.claims.claim_progress import ClaimProgress
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, RequestPurpose, unit
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend
from karpool_fleet.clusters.clock import run_manual
from tests.fleet.karpenter.acting import GIB, Stage, staged

GPU = {"cpu": 500, "memory": GIB, "nvidia.com/gpu": 1}
ACCELERATED = NodeCandidate(pools=("gpu",), instance_types=("accelerated",))
SETTINGS = SmartPodSettings()


def ask(request: str = "scaleup-1", units: int = 1, **changes: Any) -> NodeRequest:
    given: dict[str, Any] = {
        "request": request,
        "epoch": 1,
        "units": (unit(changes.pop("resources", GPU)),) * units,
        "candidates": (ACCELERATED,),
        "pool": "shared",
        "model": "NVIDIA A100-SXM4-80GB",
        "demand": ("uid-1",),
    }
    return NodeRequest(**(given | changes))


def replacement(type_: str, **changes: Any) -> NodeRequest:
    """One node of a pool, for what consolidation moves."""
    candidate = NodeCandidate(pools=("general",), instance_types=(type_,), capacity_types=("on-demand",))
    given: dict[str, Any] = {"purpose": RequestPurpose.REPLACEMENT, "model": "", "pool": "general"}
    given |= {"candidates": (candidate,), "resources": {"cpu": 1000, "memory": GIB}}
    return ask("move-1", **(given | changes))


@dataclass
class Desk:
    """What a controller holds: a monitor and a backend, fed by its own informers."""

    client: Client
    monitor: ClaimMonitor
    pods: SmartPodBackend
    told: list[ClaimProgress] = field(default_factory=list)

    def one(self) -> Placeholder:
        (found,) = self.pods.placeholders()
        return found

    async def reached(
        self, stage: Stage, outlook: PlaceholderState, *, count: int = 1, seconds: float = 600.0
    ) -> None:
        """Until there are so many placeholders, and all have come so far."""

        async def all_have() -> bool:
            found = self.pods.placeholders()
            return len(found) == count and all(each.outlook is outlook for each in found)

        await stage.until(all_have, seconds=seconds)


@asynccontextmanager
async def followed(client: Client, watches: Iterable[WatchedKind[Any]]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        informers = []
        for watch in watches:
            informer = Informer(
                client, watch.resource, into=watch.into, selection=watch.selection, keep=False
            )
            informer.add_sink(watch.sink)
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
    assert await ensure_prerequisites(client, settings) == []
    monitor = ClaimMonitor(stage.cluster.clock)
    pods = SmartPodBackend(client, settings, monitor)
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
