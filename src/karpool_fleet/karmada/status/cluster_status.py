"""The cluster status controller: health, served APIs and capacity of each member.

Members are checked once per period, as upstream; in between a scheduler sees an older state. A member that
does not answer keeps its condition for a threshold, and its last summary.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.conditions import changed_fields, condition_of, upsert_condition
from karpool.kube.errors import KubeError, NotFound, StatusError
from karpool.kube.transport.rest import NEVER
from karpool.kube.watch.informer import Informer
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import CLUSTERS, CRDS, NODES, PODS, ObjectKey
from karpool.model.kubernetes.meta import ObjectMeta, Wire
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.karmada.members.members import Connection, JoinedMember, MemberController, start_in
from karpool_fleet.karmada.members.summary import Models, SummaryBuilder
from karpool_fleet.karmada.propagation.names import CLUSTER_FINALIZER, Object
from karpool_fleet.runtime.informers import EachChange, Feed
from karpool_fleet.runtime.supervisor import Context

PERIOD_SECONDS = 10.0
THRESHOLD_SECONDS = 30.0  # how long a member must fail, or be healthy, before its condition changes
PROBE_SECONDS = 10.0


class Ready(NamedTuple):
    status: str
    reason: str
    message: str


WELL = Ready("True", "ClusterReady", "cluster is healthy and ready to accept workloads")
UNWELL = Ready("False", "ClusterNotReady", "cluster is reachable but health endpoint responded without ok")
UNREACHED = Ready("False", "ClusterNotReachable", "cluster is not reachable")
COMPLETE = Ready("True", "Complete", "collected complete APIEnablements from the cluster")


class Threshold:
    """Delays a change of readiness until it has lasted."""

    def __init__(self) -> None:
        self._seen: tuple[str, float] | None = None

    def adjusted(self, observed: Ready, held: Object | None, now: float) -> Ready:
        if self._seen is None or self._seen[0] != observed.status:
            first, self._seen = self._seen is None, (observed.status, now)
            if first or held is None:
                return observed
        if held is None or (held["status"] == "True") == (observed.status == "True"):
            return observed
        if now < self._seen[1] + THRESHOLD_SECONDS:
            return Ready(held["status"], held["reason"], held["message"])
        return observed


async def api_enablements(connection: Connection) -> list[Object]:
    """Return everything that a member serves, as `status.apiEnablements`."""
    client = connection.client
    versions = ["v1"]
    for group in (await client.get_path("/apis")).get("groups") or ():
        versions.extend(version["groupVersion"] for version in group["versions"])
    conditions: list[Object] = []
    for version in sorted(versions):
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        entries = (await client.get_path(root)).get("resources") or ()
        kinds = sorted((entry["name"], entry["kind"]) for entry in entries if "/" not in entry["name"])
        conditions.append(
            {"groupVersion": version, "resources": [{"name": name, "kind": kind} for name, kind in kinds]}
        )
    return conditions


class _Definition(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Watched:
    """One watched member."""

    def __init__(self, connection: Connection, group: asyncio.TaskGroup) -> None:
        self.connection = connection
        self.summary = SummaryBuilder()
        self.threshold = Threshold()
        self.models: Any = None  # models of the last summary
        self.version = ""
        self.enablements: list[Object] = []
        self.is_stale = True  # version and APIs are not known or may have changed
        client = connection.client
        self._pods = Informer(client, PODS, into=Pod, keep=False)
        self._nodes = Informer(client, NODES, into=Node, keep=False)
        definitions = Informer(client, CRDS, into=_Definition, keep=False)
        self._pods.add_sink(EachChange(self.summary.on_pod))
        self._nodes.add_sink(EachChange(self.summary.on_node))
        definitions.add_sink(EachChange(self._on_definition))
        informers: Sequence[Informer[Any]] = (self._pods, self._nodes, definitions)
        started = [start_in(group, informer.run(), f"{informer.resource}") for informer in informers]
        self.tasks = [task for task in started if task is not None]

    @property
    def is_synced(self) -> bool:
        return self._pods.synced.is_set() and self._nodes.synced.is_set()

    def _on_definition(self, change: ObjectChange[_Definition]) -> None:
        self.is_stale = True

    async def learn(self) -> None:
        """Read version and APIs of the member if they may have changed; raises KubeError."""
        if self.is_stale:
            self.is_stale = False  # set first: a definition that is created meanwhile outdates the answer
            try:
                self.version = await self.connection.client.server_version()
                self.enablements = await api_enablements(self.connection)
            except BaseException:
                self.is_stale = True
                raise

    def resources(self, models: Sequence[Object]) -> Object:
        if models != self.models:
            self.models = models
            if models:
                self.summary.set_models(Models(models))
        return self.summary.resources(models)

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()


class ClusterStatusController(MemberController):
    workers = 1

    def __init__(self, context: Context, members: Mapping[str, JoinedMember]) -> None:
        super().__init__(context, members)
        self._watched: dict[str, _Watched] = {}
        self._clusters: Feed[Object] = context.informers.of(CLUSTERS)
        self._clusters.on_change(self._on_cluster)

    def _on_cluster(self, change: ObjectChange[Object]) -> None:
        name = change.key.name
        if change.type == "DELETED" and name in self._watched:
            self._watched.pop(name).stop()
        new, old = change.object, change.old
        marks = [obj and obj["metadata"].get("finalizers") for obj in (new, old)]
        if old is None or marks[0] != marks[1] or new is None or new.get("spec") != old.get("spec"):
            self._queue_of(name).add(change.key)

    async def _reconcile(self, key: ObjectKey) -> Requeue | None:
        cluster = self._clusters.get(key)
        # With the finalizer, the cluster controller has created its execution namespace.
        if cluster is None or CLUSTER_FINALIZER not in (cluster["metadata"].get("finalizers") or ()):
            return None
        await self._write(cluster, await self._observe(key.name, cluster))
        return Requeue(PERIOD_SECONDS)

    async def _observe(self, name: str, cluster: Object) -> Object:
        """Return the status fields that are known now."""
        connection = self.connections.get(name)
        held = (cluster.get("status") or {}).get("conditions") or []
        now = self._clock.now()
        if connection is None:
            reason = Ready("False", "StatusCollectionFailed", f"there is no way to reach cluster {name}")
            return {"conditions": self._conditions(held, {"Ready": reason})}
        watched = self._watch(name, connection)
        observed = await self._probe(connection)
        ready = watched.threshold.adjusted(observed, condition_of(held, "Ready"), now)
        if observed is not WELL:
            watched.is_stale = True  # it may return with another version
        if observed is not WELL or ready.status != "True":
            return {"conditions": self._conditions(held, {"Ready": ready})}
        try:
            await watched.learn()
        except KubeError:
            return {"conditions": self._conditions(held, {"Ready": ready})}
        status: Object = {"kubernetesVersion": watched.version, "apiEnablements": watched.enablements}
        if watched.is_synced:
            status["nodeSummary"] = watched.summary.nodes()
            status["resourceSummary"] = watched.resources(cluster["spec"].get("resourceModels") or ())
        status["conditions"] = self._conditions(held, {"CompleteAPIEnablements": COMPLETE, "Ready": ready})
        return status

    def _watch(self, name: str, connection: Connection) -> _Watched:
        if name not in self._watched:
            assert self.group is not None, "the component does not run"
            self._watched[name] = _Watched(connection, self.group)
        return self._watched[name]

    async def _probe(self, connection: Connection) -> Ready:
        try:
            await connection.client.rest.call("GET", "/readyz", retry=NEVER, timeout=PROBE_SECONDS)
        except StatusError:
            return UNWELL
        except KubeError:
            return UNREACHED
        return WELL

    def _conditions(self, held: list[Object], wanted: Mapping[str, Ready]) -> list[Object]:
        now = rfc3339(self._clock.now())
        for condition_type, said in wanted.items():
            held = upsert_condition(held, {"type": condition_type, **said._asdict()}, now)
        return held

    async def _write(self, cluster: Object, status: Object) -> None:
        held = cluster.get("status") or {}
        patch = changed_fields({key: held[key] for key in held if key in status}, status)
        if not patch:
            return
        meta = cluster["metadata"]
        # The cluster controller writes conditions into the same list.
        known = (
            {"resourceVersion": meta["resourceVersion"]} if "conditions" in patch else {"uid": meta["uid"]}
        )
        try:
            await self._client.patch(
                CLUSTERS, meta["name"], {"metadata": known, "status": patch}, subresource="status"
            )
        except NotFound:
            return
