"""A control plane with bindings and clusters, a scheduler at work, and words for stories about them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.errors import NotFound
from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import CLUSTERRESOURCEBINDINGS, CLUSTERS, EVENTS, RESOURCEBINDINGS
from karpool.scheduler.controller.controller import Scheduler, SchedulerSettings
from karpool.scheduler.controller.options import SCHEDULER_NAME
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster

Object = dict[str, Any]

DYNAMIC = {
    "replicaSchedulingType": "Divided",
    "replicaDivisionPreference": "Weighted",
    "weightPreference": {"dynamicWeight": "AvailableReplicas"},
}
AGGREGATED = {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"}
DUPLICATED = {"replicaSchedulingType": "Duplicated"}
APIS = [{"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}]


def cluster(name: str, **spec: Any) -> Object:
    labels = spec.pop("labels", {})
    return {"metadata": {"name": name, "labels": labels}, "spec": {"syncMode": "Push", **spec}}


def summary(cpu: int, used: int = 0, waiting: int = 0, pods: int = 1000) -> Object:
    """So many cores in all, so many of pods on nodes and of pods without one; a pod has one core."""
    return {
        "allocatable": {"cpu": str(cpu), "memory": "1000Gi", "pods": str(pods)},
        "allocated": {"cpu": str(used), "pods": str(used)},
        "allocating": {"cpu": str(waiting), "pods": str(waiting)},
    }


def binding(
    name: str,
    replicas: int = 1,
    *,
    how: Object | None = DYNAMIC,
    cpu: str = "1",
    namespace: str = "default",
    scheduler: str = SCHEDULER_NAME,
    priority: int | None = None,
    labels: Object | None = None,
    placement: Object | None = None,
    **spec: Any,
) -> Object:
    full: Object = {
        "resource": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
        },
        "replicas": replicas,
        "replicaRequirements": {"resourceRequest": {"cpu": cpu}},
        "schedulerName": scheduler,
        "placement": {**({"replicaScheduling": how} if how else {}), **(placement or {})},
        **spec,
    }
    if priority is not None:
        full["schedulePriority"] = {"priority": priority}
    meta: Object = {"name": f"{name}-deployment", "labels": labels or {_PERMANENT_ID: name}}
    if namespace:
        meta["namespace"] = namespace
    return {"metadata": meta, "spec": full}


_PERMANENT_ID = "propagationpolicy.karmada.io/permanent-id"


class Stage:
    """The control plane's API server, and whoever acts on it."""

    def __init__(self, control: EmbeddedCluster) -> None:
        self.control = control
        self.admin = control.client("admin")
        self.clock = control.clock

    async def join(self, name: str, cpu: int, **spec: Any) -> None:
        await self.admin.create(CLUSTERS, cluster(name, **spec))
        await self.report(name, cpu)

    async def report(self, name: str, cpu: int, **counts: int) -> None:
        """What the member says it has."""
        status = {"resourceSummary": summary(cpu, **counts), "apiEnablements": APIS}
        await self.admin.patch(CLUSTERS, name, {"status": status}, subresource="status")

    async def create(self, *bindings: Object) -> None:
        for each in bindings:
            resource = RESOURCEBINDINGS if "namespace" in each["metadata"] else CLUSTERRESOURCEBINDINGS
            await self.admin.create(resource, each)

    async def get(self, name: str, namespace: str = "default") -> Object:
        resource = RESOURCEBINDINGS if namespace else CLUSTERRESOURCEBINDINGS
        return await self.admin.get(resource, f"{name}-deployment", namespace=namespace or None)

    async def patch(
        self, name: str, patch: Object, *, subresource: str = "", namespace: str = "default"
    ) -> Object:
        resource = RESOURCEBINDINGS if namespace else CLUSTERRESOURCEBINDINGS
        return await self.admin.patch(
            resource, f"{name}-deployment", patch, namespace=namespace or None, subresource=subresource
        )

    async def landed(self, name: str, **ready: int) -> None:
        """Members report so many replicas of a workload as there and ready."""
        items = [
            {
                "clusterName": member,
                "applied": True,
                "health": "Healthy",
                "status": {"replicas": count, "readyReplicas": count},
            }
            for member, count in ready.items()
        ]
        await self.patch(name, {"status": {"aggregatedStatus": items}}, subresource="status")

    async def result(self, name: str) -> dict[str, int]:
        return targets(await self.get(name))

    async def condition(self, name: str) -> tuple[str, str, str]:
        return condition(await self.get(name))

    async def events(self, reason: str = "") -> list[str]:
        found = (await self.admin.list(EVENTS)).items
        return [each["message"] for each in found if not reason or each["reason"] == reason]

    async def bindings(self) -> list[Object]:
        return (await self.admin.list(RESOURCEBINDINGS)).items

    @asynccontextmanager
    async def scheduling(
        self, chosen: SchedulerSettings | None = None, *, component: str = "scheduler", **more: Any
    ) -> AsyncIterator[Scheduler]:
        """A scheduler of its own client, until the block is left; then it stops in good order."""
        client: Client = self.control.client(component)
        manager = Manager.of(
            client,
            lambda environment: Scheduler(environment, chosen, **more),
            component=(chosen or SchedulerSettings()).name,
        )
        stop = Stop()
        running = asyncio.create_task(manager.run(stop))
        try:
            yield manager.runnable
        finally:
            stop.set()
            await running

    async def until(self, is_so: Callable[[], Awaitable[object]], *, seconds: float = 60.0) -> None:
        for _ in range(int(seconds * 10)):
            if await is_so():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"not so after {seconds} s")

    async def until_placed(self, *names: str, seconds: float = 60.0) -> None:
        async def placed() -> bool:
            return all([(await self.condition(name))[0] == "True" for name in names])

        await self.until(placed, seconds=seconds)

    async def until_said(self, name: str, reason: str, *, seconds: float = 60.0) -> None:
        async def said() -> bool:
            return (await self.condition(name))[1] == reason

        await self.until(said, seconds=seconds)


def targets(found: Object) -> dict[str, int]:
    return {each["name"]: each.get("replicas", 0) for each in found["spec"].get("clusters") or ()}


def condition(found: Object) -> tuple[str, str, str]:
    for each in found.get("status", {}).get("conditions") or ():
        if each["type"] == "Scheduled":
            return each["status"], each["reason"], each["message"]
    return "", "", ""


@asynccontextmanager
async def staged(seed: int = 0) -> AsyncIterator[Stage]:
    control = EmbeddedCluster("karmada", clock=LoopClock(), seed=seed, crds=bundled_crds(KARMADA))
    async with control:
        yield Stage(control)


def play(story: Callable[[Stage], Awaitable[Any]], *, seed: int = 0) -> Any:
    """A story on manual time."""

    async def main() -> Any:
        async with staged(seed) as stage:
            return await story(stage)

    return run_manual(main())


async def exists(stage: Stage, name: str) -> bool:
    try:
        await stage.get(name)
    except NotFound:
        return False
    return True
