"""Members of a Karmada control plane that join and leave while a process runs.

A new member is connected and watched; a removed member is dropped. A member that cannot be reached, or whose
secret cannot be read, is retried and does not delay the others. A changed secret is used within a minute.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import structlog

from karpool.cluster.changes import PutDropSink
from karpool.kube.api.client import Client
from karpool.kube.config.karmada_members import member_config, secret_of
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.manager.controller import Environment
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import CLUSTERS, SECRETS, ObjectKey

log = structlog.get_logger(__name__)

RETRY_SECONDS = 10.0  # Karmada's interval for its members
_POLL_SECONDS = 0.1
SECRET_SECONDS = 60.0  # tokens are rotated by the hour, and the old one stays valid for a while
# Fields of a Cluster object that reconnect the member when they change: address and region.
_PLACE = (
    "apiEndpoint",
    "secretRef",
    "insecureSkipTLSVerification",
    "proxyURL",
    "syncMode",
    "region",
    "zones",
)

_ZONES_MAX = 100
Object = Mapping[str, Any]


@asynccontextmanager
async def watching_member(environment: Environment, informers: InformerSet) -> AsyncIterator[None]:
    """Watch a new member during a block.

    It counts for readiness only once it is synced: a new member must not make the process unready.
    """
    status, clock = environment.status, environment.clock

    async def count_in() -> None:
        while informers.not_ready() is not None:
            await clock.sleep(_POLL_SECONDS)
        status.informers = [*status.informers, informers]

    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(informers.run()), group.create_task(count_in())]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            status.informers = [other for other in status.informers if other is not informers]


class FleetMembership:
    """Serves every member: `serving` serves one, `files` are kubeconfigs of members that need no secret."""

    def __init__(
        self,
        control: Client,
        connect: Callable[[ClusterConfig], Client],
        serving: Callable[[str, Client], AbstractAsyncContextManager[None]],
        files: Callable[[], Mapping[str, ClusterConfig]] = dict,
    ) -> None:
        self._control = control
        self._connect = connect
        self._serving = serving
        self._files = files
        self._clusters: dict[str, Object] = {}
        self._served: dict[str, tuple[object, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        sink = PutDropSink[dict[str, Any]](self._put, self._drop)
        self.informers = InformerSet(control, [WatchedKind(CLUSTERS, dict, sink)])

    def _put(self, key: ObjectKey, cluster: Object) -> None:
        leaving = bool(cluster["metadata"].get("deletionTimestamp"))
        if leaving:
            self._clusters.pop(key.name, None)
        else:
            self._clusters[key.name] = cluster
        self._changed.set()

    def _drop(self, key: ObjectKey) -> None:
        self._clusters.pop(key.name, None)
        self._changed.set()

    def place_of(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return region and zones of the Cluster object; empty if it has none."""
        spec = self._clusters.get(name, {}).get("spec")
        spec = spec if isinstance(spec, Mapping) else {}
        region, zones = spec.get("region"), spec.get("zones")
        listed = zones[:_ZONES_MAX] if isinstance(zones, list) else ()
        return region if isinstance(region, str) else "", tuple(
            zone for zone in listed if isinstance(zone, str)
        )

    async def run(self, stop: Stop) -> None:
        async with asyncio.TaskGroup() as group:
            try:
                while not stop.is_set():
                    self._changed.clear()
                    await self._settle(group)
                    await stop.until(self._changed.wait())
            finally:
                for _, task in self._served.values():
                    task.cancel()

    async def _settle(self, group: asyncio.TaskGroup) -> None:
        for name, (mark, task) in list(self._served.items()):
            if name not in self._clusters or _mark(self._clusters[name]) != mark:
                del self._served[name]
                task.cancel()
                await asyncio.wait((task,))
                log.info("cluster left", cluster=name)
        for name, cluster in self._clusters.items():
            if name not in self._served:
                log.info("cluster joined", cluster=name)
                task = group.create_task(self._keep(name, cluster), name=f"{name} membership")
                self._served[name] = _mark(cluster), task

    async def _keep(self, name: str, cluster: Object) -> None:
        """Serve a member until cancelled; reconnect when its secret changes."""
        while True:
            try:
                secret = await self._secret(name, cluster)
                config = self._files()[name] if secret is None else member_config(cluster, secret)
                async with self._connect(config) as client, self._serving(name, client):
                    while await self._secret(name, cluster) == secret:
                        await self._control.clock.sleep(SECRET_SECONDS)
                log.info("cluster credentials changed", cluster=name)
            except Exception as error:  # any error; the other members are still served
                log.warning("cluster not served", cluster=name, reason=str(error))
                await self._control.clock.sleep(RETRY_SECONDS)

    async def _secret(self, name: str, cluster: Object) -> Object | None:
        """Return the secret of a member; None if the member has a file of its own."""
        if name in self._files():
            return None
        key = secret_of(cluster)
        held: Object = (await self._control.get(SECRETS, key.name, namespace=key.namespace)).get("data") or {}
        return {"data": held}


def _mark(cluster: Object) -> object:
    """Return the fields that are read only when a member joins."""
    spec = cluster.get("spec") or {}
    return cluster["metadata"].get("uid"), *(str(spec.get(name)) for name in _PLACE)
