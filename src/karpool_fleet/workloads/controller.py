"""The base of the workload controllers: a queue of owners, and careful writes.

A controller reconciles one owner at a time. It is correct when it is killed between any two writes, and when
its cache is behind. Pod events are batched for a moment, so that a thousand pods that start together cost a
few reconciliations, not a thousand.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.api.conditions import changed_fields
from karpool.kube.api.decoding import Object
from karpool.kube.errors import AlreadyExists, ApiUnreachable, KubeError, NotFound
from karpool.kube.event_recorder import EventType, ref
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.kubernetes.api_resources import ApiResource, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import delete_object, patch_object
from karpool_fleet.workloads.dependents import Dependents, key_of, meta_of
from karpool_fleet.workloads.ownership import Selectors, selector_of
from karpool_fleet.workloads.pods import name_for

T = TypeVar("T")
_NAME_DRAWS = 16
BURST = 500  # creations or deletions in one reconciliation, as upstream


WORKERS = 5
GATHER_SECONDS = 0.1  # how long pod events are batched

# Metadata in which a write of another client matters to a controller.
_FOREIGN = ("generation", "labels", "annotations", "deletionTimestamp", "ownerReferences", "finalizers")


class Latest:
    """The newest state of each owner: from the watch, or from our own later writes."""

    def __init__(self, feed: Feed[Object]) -> None:
        self._feed = feed
        self._written: dict[ObjectKey, Object] = {}
        self._quiet: dict[ObjectKey, bool] = {}
        feed.on_change(self._on_change)

    def get(self, key: ObjectKey) -> Object | None:
        return self._written.get(key) or self._feed.get(key)

    def assume(self, answer: Object, before: Object) -> None:
        """Store the answer to our write on `before` as the newest state."""
        key = key_of(meta_of(answer))
        seen = self._feed.get(key)
        if seen is not None and _version(seen) < _version(answer):
            self._written[key] = answer
            alone = all(answer["metadata"].get(field) == before["metadata"].get(field) for field in _FOREIGN)
            self._quiet[key] = alone

    async def catch_up(self, client: Client, resource: ApiResource) -> None:
        """Read what a former process wrote and the watch has not reported yet."""
        for live in (await client.list(resource)).items:
            key = key_of(meta_of(live))
            seen = self._feed.get(key)
            if seen is not None and _version(seen) < _version(live):
                self._written[key], self._quiet[key] = live, False

    def is_own(self, key: ObjectKey, obj: Object) -> bool:
        """Whether this state is the answer to our latest write, without changes by others."""
        written = self._written.get(key)
        return written is not None and _version(written) == _version(obj) and self._quiet[key]

    def _on_change(self, change: ObjectChange[Object]) -> None:
        written = self._written.get(change.key)
        if written is None or change.object is None:
            return
        if change.type == "DELETED" or _version(change.object) >= _version(written):
            del self._written[change.key], self._quiet[change.key]


def _version(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)


class WorkloadController:
    """Reconciles owners of one kind. Subclasses reconcile, and name their dependents."""

    resource: ApiResource

    def __init__(self, context: Context) -> None:
        self.context = context
        self.client = context.client
        self.clock = context.clock
        self.random = context.random
        self.queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, chance=context.random.random)
        self.selectors = Selectors()
        feed: Feed[Object] = context.informers.of(self.resource)
        feed.on_change(self._on_change)  # before `Latest`, which drops its copy on the same event
        self.owners = Latest(feed)
        self.dependents: list[Dependents[Any]] = []

    def watch(
        self, resource: ApiResource, into: type[T], *, group: Callable[[T], str] | None = None
    ) -> Dependents[T]:
        """Watch objects of `resource` as dependents; called in the constructor."""
        dependents = Dependents(
            self.context.informers.of(resource, into),
            self.client,
            resource,
            self.resource,
            on_owner=self.on_dependent,
            on_orphan=self._on_orphan,
            group=group,
        )
        self.dependents.append(dependents)
        return dependents

    async def run(self) -> None:
        await self.context.informers.synced()
        await self.owners.catch_up(self.client, self.resource)
        for dependents in self.dependents:
            await dependents.catch_up()
        async with asyncio.TaskGroup() as group:
            for dependents in self.dependents:
                group.create_task(dependents.verify())
            await self.queue.run(self.reconcile, workers=WORKERS)

    async def reconcile(self, key: ObjectKey) -> Requeue | None:
        raise NotImplementedError

    def on_dependent(self, key: ObjectKey, change: str) -> None:
        self.queue.add_after(key, GATHER_SECONDS)

    def _on_change(self, change: ObjectChange[Object]) -> None:
        if change.type == "DELETED" or change.object is None:
            self.selectors.drop(change.key)
            if change.object is not None:
                for dependents in self.dependents:
                    dependents.forget_owner(change.object["metadata"]["uid"])
        else:
            self.selectors.put(change.key, selector_of(change.object))
            if change.type == "MODIFIED" and self.owners.is_own(change.key, change.object):
                return
        self.queue.add(change.key)

    def _on_orphan(self, namespace: str, labels: dict[str, str]) -> None:
        for key in self.selectors.matching(namespace, labels):
            self.queue.add(key)

    # Writing

    async def write_status(self, obj: Object, status: Object) -> None:
        patch = changed_fields(obj.get("status") or {}, status)
        if not patch:
            return
        answer = await patch_object(self.client, self.resource, obj, {"status": patch}, status=True)
        if answer is not None:
            self.owners.assume(answer, obj)

    async def create_named(self, dependents: Dependents[Any], obj: Object, owner_uid: str) -> bool:
        """Create an object with a fixed name; return whether the owner has it now.

        If the answer is lost, the object is read, so that nothing is created twice.
        """
        meta, resource = obj["metadata"], dependents.resource
        try:
            answer = await self.client.create(resource, obj)
        except (AlreadyExists, ApiUnreachable) as error:
            try:
                answer = await self.client.get(resource, meta["name"], namespace=meta["namespace"])
            except NotFound:
                raise error from None
        dependents.assume(answer)
        references = answer["metadata"].get("ownerReferences") or ()
        return any(reference["uid"] == owner_uid for reference in references)

    async def create_pod(
        self, dependents: Dependents[Any], obj: Object, base: str, build: Callable[[str], Object]
    ) -> None:
        """Create the pod of `build` under a random name; names are drawn until one is free."""
        meta = obj["metadata"]
        for _ in range(_NAME_DRAWS):
            name = name_for(base, self.random)
            if dependents.get(ObjectKey(meta["namespace"], name)) is not None:
                continue
            if await self.create_named(dependents, build(name), meta["uid"]):
                self.record(obj, "Normal", "SuccessfulCreate", f"Created pod: {name}")
                return
        raise AlreadyExists(f"pods {meta['namespace']}/{name}", 409, message="no free name was found")

    async def delete_dependent(self, dependents: Dependents[Any], obj: Any) -> None:
        meta = meta_of(obj)
        if await delete_object(self.client, dependents.resource, meta, propagation="Background"):
            dependents.assume_deleted(key_of(meta), meta.uid)
        else:
            dependents.forget(key_of(meta), meta.uid)

    async def create_all(
        self, obj: Object, works: Sequence[Callable[[], Awaitable[None]]]
    ) -> KubeError | None:
        """Create pods; record an event for the first error and return it."""
        error = await slow_start(works)
        if error is not None:
            self.record(obj, "Warning", "FailedCreate", f"Error creating: {error}")
        return error

    async def delete_pod(self, dependents: Dependents[Any], obj: Object, pod: Pod) -> None:
        await self.delete_dependent(dependents, pod)
        self.record(obj, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")

    def record(self, obj: Object, event_type: EventType, reason: str, message: str) -> None:
        self.context.events.record(ref(self.resource, obj), event_type, reason, message)


async def slow_start(works: Sequence[Callable[[], Awaitable[None]]]) -> KubeError | None:
    """Run 1, then 2, 4, 8, ... at a time; stop after a batch with a failure, and return the first one.

    If the server refuses all of them, it gets one request and not five hundred.
    """
    done, size = 0, 1
    while done < len(works):
        batch = works[done : done + size]
        results = await asyncio.gather(*(work() for work in batch), return_exceptions=True)
        refusals = [result for result in results if isinstance(result, KubeError)]
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, KubeError):
                raise result
        if refusals:
            return refusals[0]
        done += len(batch)
        size *= 2
    return None
