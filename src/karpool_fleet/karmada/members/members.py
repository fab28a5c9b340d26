"""Member clusters of the control plane: how to reach them, and how they join.

A `JoinedMember` is what an operator would put into a kubeconfig and a Cluster object. Every part of the
control plane has its own client for each member and no other access, so a fault on that client cuts the
member off.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.errors import AlreadyExists, NotFound
from karpool.kube.watch.informer import Informer
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.kubernetes.api_resources import CLUSTERS, ApiResource, ListOptions, ObjectKey
from karpool_fleet.karmada.propagation.names import MANAGED, Object
from karpool_fleet.runtime.controller import looking_again
from karpool_fleet.runtime.informers import EachChange
from karpool_fleet.runtime.supervisor import Context

T = TypeVar("T")

CALLER = "karmada"  # the control plane's name in member clusters
OURS = ListOptions(label_selector=f"{MANAGED}=true")

# Default grades of a Cluster: lower bounds in cores and GiB of memory.
_GRADES = ((0, 0), (1, 4), (2, 16), (4, 32), (8, 64), (16, 128), (32, 256), (64, 512), (128, 1024))
_MOST = str(2**63 - 1)


@dataclass(frozen=True)
class JoinedMember:
    name: str
    connect: Callable[[str], Client]  # returns a client for a named caller, such as `EmbeddedCluster.client`
    provider: str = ""
    region: str = ""
    zones: tuple[str, ...] = ()
    resource_models: tuple[Object, ...] | None = None  # None: the default grades


def default_models() -> list[Object]:
    models = []
    for grade, (cpu, memory) in enumerate(_GRADES):
        more = _GRADES[grade + 1] if grade + 1 < len(_GRADES) else None
        models.append(
            {
                "grade": grade,
                "ranges": [
                    {"name": "cpu", "min": str(cpu), "max": str(more[0]) if more else _MOST},
                    {"name": "memory", "min": _gib(memory), "max": _gib(more[1]) if more else _MOST},
                ],
            }
        )
    return models


def _gib(amount: int) -> str:
    return f"{amount}Gi" if amount else "0"


def cluster_object(member: JoinedMember) -> Object:
    """Return the Cluster object of a member, with the defaults of upstream's admission."""
    place = {"provider": member.provider, "region": member.region, "zones": list(member.zones)}
    models = default_models() if member.resource_models is None else list(member.resource_models)
    spec: Object = {
        "syncMode": "Push",
        "apiEndpoint": f"https://{member.name}.embedded",
        **{key: value for key, value in place.items() if value},
        "resourceModels": models,
    }
    return {"metadata": {"name": member.name}, "spec": spec}


async def join(client: Client, member: JoinedMember) -> Object:
    """Join a member; joining twice changes nothing. `client` is the control plane's."""
    try:
        return await client.create(CLUSTERS, cluster_object(member))
    except AlreadyExists:
        return await client.get(CLUSTERS, member.name)


class MemberKinds:
    """Maps apiVersion and kind to the resources of a server, with a cache."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, str], ApiResource] = {}
        self._with_status: dict[ApiResource, bool] = {}

    async def find(self, api_version: str, kind: str) -> ApiResource | None:
        """Return the resource; None if the server does not serve it now.

        Raises if the server cannot be reached.
        """
        resource = self._known.get((api_version, kind))
        if resource is None:
            await self._learn(api_version)
            resource = self._known.get((api_version, kind))
        return resource

    def has_status(self, resource: ApiResource) -> bool:
        """Whether a resource that was found has a status subresource."""
        return self._with_status.get(resource, False)

    async def _learn(self, api_version: str) -> None:
        group, _, version = api_version.rpartition("/")
        try:
            document = await self._client.get_path(f"/apis/{api_version}" if group else f"/api/{version}")
        except NotFound:
            return
        entries: list[Any] = document.get("resources") or []
        names = {entry["name"] for entry in entries}
        for entry in entries:
            name = entry["name"]
            if "/" in name or "list" not in entry.get("verbs", ()):
                continue
            resource = ApiResource(group, version, name, entry["kind"], bool(entry["namespaced"]))
            self._known.setdefault((api_version, entry["kind"]), resource)
            self._with_status[resource] = f"{name}/status" in names


class Connection:
    """One component's connection to one member: a client, and the kinds that the member serves."""

    def __init__(self, member: JoinedMember) -> None:
        self.member = member
        self.client = member.connect(CALLER)
        self.kinds = MemberKinds(self.client)


class Connections:
    """One component's connections, opened on first use."""

    def __init__(self, members: Mapping[str, JoinedMember]) -> None:
        self._members = members
        self._made: dict[str, Connection] = {}

    def get(self, name: str) -> Connection | None:
        """Return the connection; None for a cluster without a known address."""
        member = self._members.get(name)
        if member is None:
            return None
        if name not in self._made:
            self._made[name] = Connection(member)
        return self._made[name]


def start_in(group: asyncio.TaskGroup, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any] | None:
    """Start a task in `group`; None if its component is being stopped."""
    try:
        return group.create_task(work, name=name)
    except RuntimeError:
        work.close()
        return None


class MemberController:
    """A controller with a queue for each member, so that one that hangs does not delay the others."""

    workers = 4

    def __init__(self, context: Context, members: Mapping[str, JoinedMember]) -> None:
        self._context, self._client, self._clock = context, context.client, context.clock
        self.connections = Connections(members)
        self.group: asyncio.TaskGroup | None = None  # group of all its tasks, while it runs
        self._queues: dict[str, WorkQueue[ObjectKey]] = {}

    async def run(self) -> None:
        await self._context.informers.synced()
        async with asyncio.TaskGroup() as self.group:
            for cluster, queue in self._queues.items():
                self._start(cluster, queue)
            await asyncio.Event().wait()  # members may join at any time

    def _queue_of(self, cluster: str) -> WorkQueue[ObjectKey]:
        if cluster not in self._queues:
            queue = self._queues[cluster] = WorkQueue(self._clock, chance=self._context.random.random)
            self._start(cluster, queue)
        return self._queues[cluster]

    def _start(self, cluster: str, queue: WorkQueue[ObjectKey]) -> None:
        if self.group is not None:
            start_in(self.group, queue.run(looking_again(self._reconcile), workers=self.workers), cluster)

    async def _reconcile(self, key: ObjectKey) -> Requeue | None:
        raise NotImplementedError


class MemberInformers(Generic[T]):
    """Informers for our objects in members; each kind is watched on first use.

    The tasks belong to the controller, and end with it.
    """

    def __init__(
        self,
        controller: MemberController,
        into: type[T],
        on_change: Callable[[str, ApiResource, ObjectChange[T]], None],
    ) -> None:
        self._controller = controller
        self._into = into
        self._on_change = on_change
        self._running: dict[tuple[str, ApiResource], tuple[Informer[T], asyncio.Task[Any]]] = {}

    def of(self, cluster: str, resource: ApiResource) -> Informer[T] | None:
        held = self._running.get((cluster, resource))
        if held is not None:
            return held[0]
        connection, group = self._controller.connections.get(cluster), self._controller.group
        if connection is None or group is None:
            return None
        informer = Informer(connection.client, resource, into=self._into, selection=OURS)
        informer.add_sink(EachChange(partial(self._on_change, cluster, resource)))
        task = start_in(group, informer.run(), f"{cluster} {resource}")
        if task is None:
            return None
        self._running[(cluster, resource)] = (informer, task)
        return informer

    def stop(self, cluster: str) -> None:
        """Stop watching a member that has left."""
        for key in [key for key in self._running if key[0] == cluster]:
            self._running.pop(key)[1].cancel()
