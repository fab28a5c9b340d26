"""Words for stories about a consolidator at work in a living cluster; Karpenter's own is switched off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.controller import COMPONENT, Consolidator, ConsolidatorSettings
from karpool.consolidation.execution.node_marks import ARRIVED, CORDONED, LEAVING, MOVE_MARK, PROTECTED
from karpool.consolidation.execution.record import MovePhase, MoveRecord, from_object, selection
from karpool.consolidation.execution.step import ExecutionSettings
from karpool.kube.event_recorder import EventRecorder
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.manager.readiness import ManagerStatus
from karpool.model.karpenter.objects import DO_NOT_DISRUPT, NODEPOOL
from karpool.model.kubernetes.api_resources import CONFIGMAPS, DEPLOYMENTS, NAMESPACES, PODS
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.karpenter.settings import KarpenterSettings
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.workloads.deployment import DeploymentController
from karpool_fleet.workloads.replicaset import ReplicaSetController
from tests.fleet.invariants import Judge, is_going, is_ready, labels_of, name_of
from tests.fleet.karpenter.acting import Stage, catalogue, staged
from tests.fleet.living import deployment

NAMESPACE = "karpool-system"
SWITCH = "karpool-consolidation"
OFF = KarpenterSettings(consolidates=False)
QUICK = ConsolidatorSettings(execution=ExecutionSettings(launch_seconds=300.0, settle_seconds=20.0))
FREELY = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}


@dataclass
class Play:
    stage: Stage
    judge: Judge
    budgets: "PoolBudgets"
    options: ConsolidatorSettings = QUICK
    made: list[Consolidator] = field(default_factory=list)
    max_staleness_seconds: float = 180.0

    def start(self, name: str = "consolidator") -> None:
        self.stage.cluster.add(name, self._build)

    def _build(self, context: Context) -> Manager[Consolidator]:
        # Events have a client of their own, as in a process; what is counted are the writes of moves.
        events = self.stage.cluster.client("consolidator-events")
        status = ManagerStatus(self.max_staleness_seconds)
        clients = {context.cluster: context.client}
        environment = Environment(clients, EventRecorder(events, COMPONENT), status=status)
        found = Consolidator(environment, self.options, market=Market(catalogue()))
        self.made.append(found)
        return Manager(found, environment)

    # The world

    async def deploy(self, name: str, replicas: int, *, cpu: str = "500m", **spec: Any) -> None:
        await self.stage.admin.create(DEPLOYMENTS, deployment(name, replicas, cpu=cpu, **spec))

    async def scale(self, name: str, replicas: int) -> None:
        await self.stage.admin.scale(DEPLOYMENTS, name, replicas, namespace="default")

    async def running(self, count: int) -> None:
        """Until exactly so many pods run, and none is on its way or going."""

        async def enough() -> bool:
            pods = [pod for pod in await self.stage.all_pods() if pod.metadata.namespace == "default"]
            return len(pods) == count == len(await self.stage.running())

        await self.until(enough)

    async def half_empty(self, nodes: int, *, template: Any = None, **pool: Any) -> None:
        """So many nodes of 2 CPU, each with two pods of 0.4 CPU where there were four."""
        await self.stage.pool("general", types=("small",), template=template, disruption=FREELY | pool)
        await self.deploy("web", 4 * nodes, cpu="400m", nodeSelector={NODEPOOL: "general"})
        await self.running(4 * nodes)
        found = [node for node in await self.stage.nodes() if node.labels[NODEPOOL] == "general"]
        names = sorted(node.name for node in found)
        assert len(names) == nodes
        # The controller takes the cheapest first.
        for name in names:
            on_node = [pod for pod in await self.stage.all_pods() if pod.spec.node_name == name]
            for pod in on_node[:2]:
                cheap = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-10"}}}
                await self.stage.admin.patch(PODS, pod.name, cheap, namespace="default")
        await asyncio.sleep(1)
        await self.scale("web", 2 * nodes)
        await self.running(2 * nodes)

    async def too_large(self, **pool: Any) -> None:
        """A node of 8 CPU for a pod that would do with 2."""
        await self.stage.pool("general", types=("small", "large"), disruption=FREELY | pool)
        await self.deploy("big", 1, cpu="6")
        await self.deploy("web", 1, cpu="1")
        await self.running(2)
        assert await self.types() == ["large"]
        await self.scale("big", 0)
        await self.running(1)

    async def switch(self, *, stop: bool) -> None:
        admin, data = self.stage.admin, {"data": {"stop": str(stop).lower()}}
        names = [each["metadata"]["name"] for each in (await admin.list(CONFIGMAPS)).items]
        if SWITCH in names:
            await admin.patch(CONFIGMAPS, SWITCH, data, namespace=NAMESPACE)
            return
        if NAMESPACE not in [each["metadata"]["name"] for each in (await admin.list(NAMESPACES)).items]:
            await admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await admin.create(CONFIGMAPS, {"metadata": {"name": SWITCH, "namespace": NAMESPACE}, **data})

    # Looking

    async def until(self, condition: Callable[[], Awaitable[bool]], *, seconds: float = 600.0) -> None:
        """Look now and then: many stories are played, and most of them wait."""
        for _ in range(int(seconds)):
            if await condition():
                return
            await asyncio.sleep(1)
        raise AssertionError(f"not true after {seconds} s: {await self.records()}")

    async def records(self) -> list[MoveRecord]:
        page = await self.stage.admin.list(CONFIGMAPS, selection(NAMESPACE), into=ConfigMap)
        return sorted(map(from_object, page.items), key=lambda record: record.created)

    async def reached(self, *phases: MovePhase, seconds: float = 600.0) -> MoveRecord:
        """Until a record is in one of these phases."""

        async def there() -> bool:
            return any(record.phase in phases for record in await self.records())

        await self.until(there, seconds=seconds)
        return next(record for record in await self.records() if record.phase in phases)

    async def over(self, *, seconds: float = 900.0) -> list[MoveRecord]:
        """Until there are records, and all of them are over."""

        async def all_over() -> bool:
            self.revive()
            found = await self.records()
            return bool(found) and all(record.phase.is_over for record in found)

        await self.until(all_over, seconds=seconds)
        return await self.records()

    def revive(self) -> None:
        components = self.stage.cluster.components
        for name in components.components:
            if not components.is_running(name):
                self.stage.crashes += 1
                components.start(name)

    async def leaks(self) -> list[str]:
        """What a move wrote and nobody took back."""
        found = []
        for node in await self.stage.nodes():
            keys = (MOVE_MARK, CORDONED, PROTECTED, DO_NOT_DISRUPT)
            found += [f"{node.name}: {key}" for key in keys if key in node.annotations]
            found += [f"{node.name}: {key}" for key in (LEAVING, ARRIVED) if key in node.labels]
            if node.spec.unschedulable:
                found.append(f"{node.name}: cordoned")
        smart = [pod for pod in await self.stage.all_pods() if pod.metadata.namespace != "default"]
        return found + [f"pod {pod.metadata.key}" for pod in smart]

    async def types(self) -> list[str]:
        return sorted(node.labels[INSTANCE_TYPE] for node in await self.stage.nodes())

    async def steady(self, seconds: float = 300.0) -> bool:
        """Whether nothing more is decided."""
        before = [(record.name, record.attempt, record.phase) for record in await self.records()]
        await asyncio.sleep(seconds)
        return before == [(record.name, record.attempt, record.phase) for record in await self.records()]


class PoolBudgets:
    """Sees every NodeClaim at the moment it is deleted, and counts; slow and obvious."""

    def __init__(self, stage: Stage) -> None:
        self.violations: list[str] = []
        self.deletions = 0
        self._store = stage.cluster.server.cluster.store
        self._store.listeners.append(self._on_change)

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return [record.object() for record in self._store.collection(kind).ordered(None)]

    def _on_change(self, event: StoredEvent) -> None:
        if event.record.collection.group_resource != "nodeclaims.karpenter.sh" or event.type != "MODIFIED":
            return
        claim = event.record.object()
        if event.previous is None or is_going(event.previous.object()) or not is_going(claim):
            return
        self.deletions += 1
        pool_name = labels_of(claim)["karpenter.sh/nodepool"]
        claims = {
            each["status"]["providerID"]: each
            for each in self._all("nodeclaims.karpenter.sh")
            if each.get("status", {}).get("providerID")
        }
        counted = consuming = 0
        for node in self._all("nodes"):
            owner = claims.get(node["spec"].get("providerID"))
            if labels_of(node).get("karpenter.sh/nodepool") != pool_name or owner is None:
                continue
            if labels_of(node).get("karpenter.sh/initialized") != "true":
                continue
            counted += 1
            consuming += is_going(owner) or not is_ready(node)
        pool = next(each for each in self._all("nodepools.karpenter.sh") if name_of(each) == pool_name)
        for budget in pool["spec"]["disruption"]["budgets"]:
            text = budget["nodes"]
            most = -(-int(text[:-1]) * counted // 100) if text.endswith("%") else int(text)
            if consuming > most:
                self.violations.append(f"{name_of(claim)}: {consuming} of {counted} go, and {text} may")


@asynccontextmanager
async def playing(options: ConsolidatorSettings = QUICK, **stage: Any) -> AsyncIterator[Play]:
    async with staged(settings=OFF, **stage) as found:
        found.cluster.add("deployments", DeploymentController)
        found.cluster.add("replicasets", ReplicaSetController)
        yield Play(found, Judge(found.cluster.server), PoolBudgets(found), options)


def play(story: Callable[[Play], Awaitable[Any]], options: ConsolidatorSettings = QUICK, **stage: Any) -> Any:
    """At the end no budget of pods or of pools was ever broken."""

    async def main() -> Any:
        async with playing(options, **stage) as found:
            result = await story(found)
            assert found.budgets.violations == []
            assert [violation for violation in found.judge.violations if "evicting" in violation] == []
            return result

    return run_manual(main())
