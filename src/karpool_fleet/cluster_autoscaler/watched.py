"""The cluster as the autoscaler sees it, kept current by events."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import (
    DAEMONSETS,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    PVCS,
    PVS,
    STORAGECLASSES,
    ApiResource,
    ObjectKey,
)
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    CompiledPdb,
    PodDisruptionBudget,
    budget_of,
    is_provisionable,
)
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.model.kubernetes.workload import pod_template
from karpool.packing.tables.room import Room
from karpool_fleet.clusters.runtime import Context, Feed

_NONE: Mapping[str, Pod] = {}


class AutoscalerState:
    def __init__(self, context: Context) -> None:
        self._informers = context.informers
        self._state = ClusterRoom(devices=False)
        self._nodes = context.informers.of(NODES, Node)
        self._pods = context.informers.of(PODS, Pod)
        self._others: dict[ApiResource, Feed[dict[str, Any]]] = {
            resource: context.informers.of(resource)
            for resource in (NAMESPACES, DAEMONSETS, PDBS, PVCS, PVS, STORAGECLASSES)
        }
        self.changes = 0  # of anything that decisions depend on
        self.unschedulable: dict[str, Pod] = {}  # by namespace/name
        self._pods_on: dict[str, dict[str, Pod]] = {}
        self._budgets: dict[str, dict[str, CompiledPdb]] = {}
        self._daemons: dict[ObjectKey, PodShape] = {}

    async def start(self) -> None:
        await self._informers.synced()
        for resource, feed in self._others.items():
            match resource.kind:
                case "DaemonSet":
                    feed.on_change(self._on_daemon_set)
                case "PodDisruptionBudget":
                    feed.on_change(self._on_budget)
                case _:
                    feed.on_change(partial(self._on_other, resource))
        self._nodes.add_sink(self._state.sink("Node"))
        self._pods.add_sink(self._state.sink("Pod"))
        self._pods.on_change(self._on_pod)
        self._nodes.on_change(lambda _: self._count())

    def _count(self) -> None:
        self.changes += 1

    # Reading

    def snapshot(self) -> Room:
        return self._state.snapshot()

    def node(self, name: str) -> Node | None:
        return self._nodes.get(ObjectKey("", name))

    def nodes(self) -> Iterable[Node]:
        return self._nodes.objects()

    def pod(self, name: str) -> Pod | None:
        namespace, _, own = name.rpartition("/")
        return self._pods.get(ObjectKey(namespace, own))

    def pods_on(self, node: str) -> Mapping[str, Pod]:
        return self._pods_on.get(node, _NONE)

    def budgets(self, namespace: str) -> Iterable[CompiledPdb]:
        return self._budgets.get(namespace, {}).values()

    def daemons(self) -> list[PodShape]:
        return list(self._daemons.values())

    # Hearing

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        self._count()
        name = str(change.key)
        pod = None if change.type == "DELETED" else change.object
        for version in (change.old, change.object):
            if version is not None and version.spec.node_name:
                held = self._pods_on.get(version.spec.node_name)
                if held is not None and held.pop(name, None) is not None and not held:
                    del self._pods_on[version.spec.node_name]
        self.unschedulable.pop(name, None)
        if pod is None:
            return
        if pod.spec.node_name:
            self._pods_on.setdefault(pod.spec.node_name, {})[name] = pod
        elif is_provisionable(pod) and not pod.is_terminating and not pod.is_terminal:
            self.unschedulable[name] = pod

    def _on_daemon_set(self, change: ObjectChange[dict[str, Any]]) -> None:
        self._count()
        self._daemons.pop(change.key, None)
        if change.type == "DELETED" or change.object is None:
            return
        try:
            self._daemons[change.key] = shape_of(pod_template({**change.object, "kind": "DaemonSet"}).pod)
        except Invalid as error:
            self._state.problems.add("DaemonSet", str(change.key), error)

    def _on_budget(self, change: ObjectChange[dict[str, Any]]) -> None:
        self._count()
        held = self._budgets.setdefault(change.key.namespace, {})
        held.pop(change.key.name, None)
        if change.type == "DELETED" or change.object is None:
            return
        try:
            held[change.key.name] = budget_of(decode(change.object, PodDisruptionBudget))
        except Invalid as error:
            self._state.problems.add("PodDisruptionBudget", str(change.key), error)

    def _on_other(self, resource: ApiResource, change: ObjectChange[dict[str, Any]]) -> None:
        self._count()
        if change.type == "DELETED" or change.object is None:
            self._state.sink(resource.kind).apply((change,))
        else:
            self._state.load(({**change.object, "kind": resource.kind},))
