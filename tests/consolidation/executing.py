"""Words for stories about a consolidator at work in a living cluster; Karpenter's own consolidation is off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from karpool.consolidation.consolidator import Consolidator, ConsolidatorOptions
from karpool.consolidation.execution import ExecutionSettings
from karpool.consolidation.marks import CORDONED, MOVE_MARK, PROTECTED
from karpool.consolidation.record import ConfigMap, Phase, Record, from_object, selection
from karpool.consolidation.settings import PlanSettings
from karpool.fleet.apiserver.inprocess import InProcess
from karpool.fleet.clock import run_manual
from karpool.fleet.embedded import EmbeddedCluster
from karpool.fleet.karpenter import KarpenterSettings
from karpool.fleet.runtime import Context
from karpool.kube.client import Client
from karpool.kube.transport import Request, Response
from karpool.model.budgets import allowed, budgets_of
from karpool.model.karpenter import DEFAULT_DISRUPTION, DO_NOT_DISRUPT, INITIALIZED, NODEPOOL
from karpool.model.node import INSTANCE_TYPE
from karpool.provisioning.market import Market
from tests.fleet.karpenter.acting import Stage, catalogue, staged

NAMESPACE = "karpool-system"
SWITCH = "karpool-consolidation"
OFF = KarpenterSettings(consolidates=False)
QUICK = ConsolidatorOptions(
    plan=PlanSettings(),
    execution=ExecutionSettings(quiet_seconds=15.0, launch_seconds=300.0, settle_seconds=20.0),
)
AT_ONCE = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}


@dataclass
class Play:
    stage: Stage
    options: ConsolidatorOptions = QUICK
    made: list[Consolidator] = field(default_factory=list)

    def start(self, name: str = "consolidator") -> None:
        self.stage.cluster.add(name, self._build)

    def _build(self, context: Context) -> "Component":
        found = Consolidator(context.client, self.options, market=Market(catalogue()))
        self.made.append(found)
        return Component(found)

    async def records(self) -> list[Record]:
        page = await self.stage.admin.list(CONFIGMAPS, selection(NAMESPACE), into=ConfigMap)
        return sorted(map(from_object, page.items), key=lambda record: record.created)

    async def phases(self) -> list[Phase]:
        return [record.phase for record in await self.records()]

    async def until_over(self, *, seconds: float = 900.0) -> list[Record]:
        """Until there are records, and all of them are over."""

        async def over() -> bool:
            self.revive()
            found = await self.phases()
            return bool(found) and all(phase.is_over for phase in found)

        await self.stage.until(over, seconds=seconds)
        return await self.records()

    def revive(self) -> None:
        for name in self.stage.cluster.components.components:
            if not self.stage.cluster.components.is_running(name):
                self.stage.crashes += 1
                self.stage.cluster.components.start(name)

    async def switch(self, *, stop: bool) -> None:
        admin = self.stage.admin
        data = {"data": {"stop": str(stop).lower()}}
        found = (await admin.list(CONFIGMAPS)).items
        if any(each["metadata"]["name"] == SWITCH for each in found):
            await admin.patch(CONFIGMAPS, SWITCH, data, namespace=NAMESPACE)
            return
        spaces = [each["metadata"]["name"] for each in (await admin.list(NAMESPACES)).items]
        if NAMESPACE not in spaces:
            await admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await admin.create(CONFIGMAPS, {"metadata": {"name": SWITCH, "namespace": NAMESPACE}, **data})

    async def leaks(self) -> list[str]:
        """What a move wrote and nobody took back."""
        found = []
        for node in await self.stage.nodes():
            marks = [key for key in (MOVE_MARK, CORDONED, PROTECTED, DO_NOT_DISRUPT) if key in node.annotations]
            found += [f"{node.name}: {key}" for key in marks]
            if node.spec.unschedulable:
                found.append(f"{node.name}: cordoned")
        smart = [pod for pod in await self.stage.all_pods() if pod.metadata.namespace != "default"]
        return found + [f"pod {pod.metadata.key}" for pod in smart]

    async def types(self) -> list[str]:
        return sorted(node.labels[INSTANCE_TYPE] for node in await self.stage.nodes())


class Component:
    def __init__(self, consolidator: Consolidator) -> None:
        self._consolidator = consolidator

    async def run(self) -> None:
        await self._consolidator.run(asyncio.Event())


@asynccontextmanager
async def playing(options: ConsolidatorOptions = QUICK, **stage: Any) -> AsyncIterator[Play]:
    async with staged(settings=OFF, **stage) as found:
        yield Play(found, options)


def play(story: Callable[[Play], Awaitable[Any]], options: ConsolidatorOptions = QUICK, **stage: Any) -> Any:
    async def main() -> Any:
        async with playing(options, **stage) as found:
            return await story(found)

    return run_manual(main())
