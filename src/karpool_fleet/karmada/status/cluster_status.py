"""The cluster status controller: whether a member is well, what it serves and how much it has.

Looked at once per period, as upstream does: between two looks a scheduler sees an older
state. A member that does not answer keeps its condition for a threshold, and its last
summary for good.
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
THRESHOLD_SECONDS = 30.0  # how long a member may fail before it is not ready, and be well before it is
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
    """Holds a change of readiness back until it has lasted."""

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
    """Everything a member serves, as `status.apiEnablements`."""
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
    """One member, watched."""

    def __init__(self, connection: Connection, group: asyncio.TaskGroup) -> None:
        self.connection = connection
        self.summary = SummaryBuilder()
        self.threshold = Threshold()
        self.models: Any = None  # those the summary was last asked with
        self.version = ""
        self.enablements: list[Object] = []
        self.is_stale = True  # what it is and serves is not known, or may be another now
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
        """What the member is and serves, if that is not known or may have changed; raises KubeError."""
        if self.is_stale:
            self.is_stale = False  # first: a definition that comes while we ask makes the answer old
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
        # The finalizer says that the cluster controller has made room for it.
        if cluster is None or CLUSTER_FINALIZER not in (cluster["metadata"].get("finalizers") or ()):
            return None
        await self._write(cluster, await self._observe(key.name, cluster))
        return Requeue(PERIOD_SECONDS)

    async def _observe(self, name: str, cluster: Object) -> Object:
        """The fields of the status that are known now."""
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
            watched.is_stale = True  # it may come back as another version
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
        # The conditions are a list that the cluster controller writes too.
        known = (
            {"resourceVersion": meta["resourceVersion"]} if "conditions" in patch else {"uid": meta["uid"]}
        )
        try:
            await self._client.patch(
                CLUSTERS, meta["name"], {"metadata": known, "status": patch}, subresource="status"
            )
        except NotFound:
            return
