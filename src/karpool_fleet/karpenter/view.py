"""The cluster as Karpenter sees it: nodes joined with claims, pods by node, usage by pool.

Kept current by events, one change at a time. The packing kernel's `Cluster` is
fed with the rows of `provisioning.expected`, so that nodes still coming up count as what they will be.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.nodes.expected import DaemonOverhead, counted_capacity, expected_row, row_name
from karpool.kube.expiring import ExpiringSet
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NODEPOOL, NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import (
    DAEMONSETS,
    NAMESPACES,
    NODECLAIMS,
    NODEPOOLS,
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
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.workload import pod_template
from karpool.model.resources import NODES as NODE_COUNT
from karpool.model.resources import Resources, add
from karpool.packing.tables.room import Room
from karpool_fleet.clusters.runtime import Context
from karpool_fleet.karpenter.newest import Newest

PodListener = Callable[[Pod | None, Pod | None], None]  # before, after
_NO_PODS: Mapping[ObjectKey, Pod] = {}


class KarpenterState:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock = context.clock
        self.claims: Newest[NodeClaim] = Newest(context, NODECLAIMS, NodeClaim)
        self.nodes: Newest[Node] = Newest(context, NODES, Node)
        self.pools: Newest[NodePool] = Newest(context, NODEPOOLS, NodePool)
        self.provisionable: dict[ObjectKey, Pod] = {}
        self.daemons = DaemonOverhead()
        self.on_pod: list[PodListener] = []
        self.on_usage: list[Callable[[str], None]] = []  # told the pool's name
        self._state = ClusterRoom(devices=False)
        self._pods_on: dict[str, dict[ObjectKey, Pod]] = {}
        self._budgets: dict[str, dict[str, CompiledPdb]] = {}
        self._claim_names: dict[str, str] = {}  # by provider id
        self._node_names: dict[str, dict[str, None]] = {}  # by provider id
        self._unlaunched: dict[str, None] = {}  # claims without a provider id
        self._leaving: dict[str, None] = {}  # rows that are going
        self._marked: dict[str, None] = {}  # claims that a command will delete
        self._nominated = ExpiringSet[str](context.clock)  # by row
        self._counted: dict[str, tuple[str, Resources]] = {}  # what each claim or node adds to its pool
        self._usage: dict[str, Resources] = {}
        self._pods = context.informers.of(PODS, Pod)
        self._raw: dict[ApiResource, Any] = {
            resource: context.informers.of(resource)
            for resource in (NAMESPACES, DAEMONSETS, PDBS, PVCS, PVS, STORAGECLASSES)
        }
        # First of all listeners, so that the others find what they were told of.
        self.claims.subscribe(self._on_claim)
        self.nodes.subscribe(self._on_node)

    async def start(self) -> None:
        """Take in everything there is; listeners must have been added before."""
        await self._context.informers.synced()
        self._raw[NAMESPACES].on_change(self._on_namespace)
        self._raw[DAEMONSETS].on_change(self._on_daemon_set)
        self._raw[PDBS].on_change(self._on_budget)
        for resource in (PVCS, PVS, STORAGECLASSES):
            self._raw[resource].on_change(self._feed(resource.kind))
        for kind in (self.pools, self.claims, self.nodes):
            kind.start()
        self._pods.on_change(self._on_pod)
        for kind in (self.pools, self.claims, self.nodes):
            await kind.catch_up()

    # Reading

    @property
    def is_synced(self) -> bool:
        """Karpenter decides nothing about capacity while a claim has no machine yet."""
        return not self._unlaunched

    def pods_on(self, node: str) -> Mapping[ObjectKey, Pod]:
        return self._pods_on.get(node, _NO_PODS)

    def pod(self, key: ObjectKey) -> Pod | None:
        return self._pods.get(key)

    def nodes_of(self, claim: NodeClaim) -> list[Node]:
        return self.nodes_with(claim.provider_id)

    def nodes_with(self, provider_id: str) -> list[Node]:
        """By name; more than one is a mistake of somebody's."""
        names = sorted(self._node_names.get(provider_id, ())) if provider_id else []
        found = (self.nodes.get(name) for name in names)
        return [node for node in found if node is not None]

    def claim_of(self, node: Node) -> NodeClaim | None:
        name = self._claim_names.get(node.spec.provider_id) if node.spec.provider_id else None
        return self.claims.get(name) if name is not None else None

    def claim_on(self, node: str) -> NodeClaim | None:
        found = self.nodes.get(node)
        return None if found is None else self.claim_of(found)

    def usage(self, pool: str) -> Mapping[str, int]:
        """Capacity of a pool's nodes and claims that are not going; `nodes` counts them."""
        return self._usage.get(pool, {})

    def usages(self) -> Mapping[str, Mapping[str, int]]:
        return self._usage

    def budgets(self, namespace: str) -> Iterable[CompiledPdb]:
        return self._budgets.get(namespace, {}).values()

    def snapshot(self) -> Room:
        """Every node, those that are going included."""
        return self._state.snapshot()

    def leaving(self) -> list[str]:
        """Rows of nodes that are going, or will be when a command is done."""
        return list(self._leaving)

    # What we remember ourselves

    def nominate(self, row: str, seconds: float) -> None:
        self._nominated.put(row, seconds)

    def is_nominated(self, row: str) -> bool:
        return row in self._nominated

    def mark(self, claim: NodeClaim, *, going: bool) -> None:
        """A command will delete this claim, or will not after all."""
        if going:
            self._marked[claim.name] = None
        else:
            self._marked.pop(claim.name, None)
        self._refresh_claim(claim)

    def is_leaving(self, claim: NodeClaim | None, node: Node | None) -> bool:
        if node is not None and node.metadata.deletion_timestamp is not None:
            return True
        return claim is not None and (claim.is_deleting or claim.name in self._marked)

    # Hearing

    def _on_claim(self, before: NodeClaim | None, after: NodeClaim | None) -> None:
        claim = after or before
        assert claim is not None
        if before is not None and before.provider_id:
            self._claim_names.pop(before.provider_id, None)
        self._unlaunched.pop(claim.name, None)
        if after is not None:
            if after.provider_id:
                self._claim_names[after.provider_id] = after.name
            elif after.metadata.deletion_timestamp is None:
                self._unlaunched[after.name] = None
        else:
            self._marked.pop(claim.name, None)
        if before is None or after is None or _claim_changed(before, after):
            self._refresh_claim(claim)

    def _refresh_claim(self, claim: NodeClaim) -> None:
        held = self.claims.get(claim.name)
        nodes = self.nodes_of(claim)
        for node in nodes:
            self._put_row(held, node)
        alone = row_name(claim, None)
        if held is None or nodes or not held.provider_id:
            self._drop_row(alone)
        else:
            self._put_row(held, None)
        node_shown = nodes[0] if nodes else None
        if held is None:
            self._count(f"c/{claim.name}", "", {})
        elif not self.is_leaving(held, node_shown):
            self._count(f"c/{claim.name}", held.pool_name, self._capacity(held, node_shown))
        else:
            self._count(f"c/{claim.name}", "", {})
        if nodes:
            if alone in self._nominated:
                own = self._nominated.left(nodes[0].name)
                self._nominated.put(nodes[0].name, max(self._nominated.left(alone), own))
            self._nominated.pop(alone)
            for node in nodes:
                self._count(f"n/{node.name}", *self._claimless(node))

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        if before is not None and after is not None and not _node_changed(before, after):
            return
        node = after or before
        assert node is not None
        for each, there in ((before, False), (after, True)):
            if each is not None and each.spec.provider_id:
                names = self._node_names.setdefault(each.spec.provider_id, {})
                if there:
                    names[each.name] = None
                else:
                    names.pop(each.name, None)
                    if not names:
                        del self._node_names[each.spec.provider_id]
        if after is None:
            self._drop_row(node.name)
            self._nominated.pop(node.name)
        claim = self.claim_of(node)
        if claim is not None:
            self._refresh_claim(claim)
        elif after is not None:
            self._put_row(None, after)
        self._count(f"n/{node.name}", *(("", {}) if after is None else self._claimless(after)))

    def _put_row(self, claim: NodeClaim | None, node: Node | None) -> None:
        name = row_name(claim, node)
        try:
            row = expected_row(claim, node)
        except Invalid as error:
            self._state.problems.add("Node", name, error)
            return
        if self.daemons.shapes:
            row = self.daemons.less(row, self._daemons_on(name))
        self._state.put_node(row)
        if self.is_leaving(claim, node):
            self._leaving[name] = None
        else:
            self._leaving.pop(name, None)

    def _drop_row(self, name: str) -> None:
        self._state.remove_node(name)
        self._leaving.pop(name, None)

    def _daemons_on(self, node: str) -> set[ObjectKey]:
        found: set[ObjectKey] = set()
        for key, pod in self.pods_on(node).items():
            for owner in pod.metadata.owner_references or ():
                if owner.kind == "DaemonSet":
                    found.add(ObjectKey(key.namespace, owner.name))
        return found

    # Usage

    def _claimless(self, node: Node) -> tuple[str, Resources]:
        """A node of a pool whose claim is not known still counts."""
        pool = node.labels.get(NODEPOOL, "")
        if not pool or self.claim_of(node) is not None or self.is_leaving(None, node):
            return "", {}
        return pool, self._capacity(None, node)

    def _capacity(self, claim: NodeClaim | None, node: Node | None) -> Resources:
        try:
            return {**counted_capacity(claim, node), NODE_COUNT: 1}
        except Invalid as error:
            self._state.problems.add("NodeClaim", row_name(claim, node), error)
            return {NODE_COUNT: 1}

    def _count(self, key: str, pool: str, amounts: Resources) -> None:
        before = self._counted.get(key, ("", {}))
        if before == (pool, amounts):
            return
        if before[0]:
            add(self._usage[before[0]], {name: -units for name, units in before[1].items()})
            self._tell_usage(before[0])
        if pool:
            self._counted[key] = (pool, amounts)
            add(self._usage.setdefault(pool, {}), amounts)
            self._tell_usage(pool)
        else:
            self._counted.pop(key, None)

    def _tell_usage(self, pool: str) -> None:
        for listener in self.on_usage:
            listener(pool)

    # Pods and the rest

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        self._state.sink("Pod").apply((change,))
        key, after = change.key, None if change.type == "DELETED" else change.object
        before = change.old if change.type == "MODIFIED" else (change.object if after is None else None)
        was_on = before.spec.node_name if before is not None else ""
        is_on = after.spec.node_name if after is not None else ""
        if was_on and was_on != is_on:
            held = self._pods_on.get(was_on)
            if held is not None and held.pop(key, None) is not None and not held:
                del self._pods_on[was_on]
        if is_on and after is not None:
            self._pods_on.setdefault(is_on, {})[key] = after
        if after is not None and is_provisionable(after) and not after.is_terminating:
            self.provisionable[key] = after
        else:
            self.provisionable.pop(key, None)
        if was_on != is_on and self.daemons.shapes:
            self._refresh_daemons(before, after)
        for listener in self.on_pod:
            listener(before, after)

    def _refresh_daemons(self, *pods: Pod | None) -> None:
        for pod in pods:
            if pod is not None and pod.spec.node_name and pod.is_owned_by("DaemonSet"):
                node = self.nodes.get(pod.spec.node_name)
                if node is not None:
                    self._put_row(self.claim_of(node), node)

    def _on_daemon_set(self, change: ObjectChange[dict[str, Any]]) -> None:
        news = False
        if change.type == "DELETED" or change.object is None:
            news = self.daemons.remove(change.key)
        else:
            try:
                shape = shape_of(pod_template({**change.object, "kind": "DaemonSet"}).pod)
            except Invalid as error:
                self._state.problems.add("DaemonSet", str(change.key), error)
                return
            news = self.daemons.put(change.key, shape)
        if news:
            for node in self.nodes.objects():
                self._put_row(self.claim_of(node), node)
            for claim in self.claims.objects():
                self._refresh_claim(claim)

    def _on_budget(self, change: ObjectChange[dict[str, Any]]) -> None:
        held = self._budgets.setdefault(change.key.namespace, {})
        if change.type == "DELETED" or change.object is None:
            held.pop(change.key.name, None)
            return
        try:
            held[change.key.name] = budget_of(decode(change.object, PodDisruptionBudget))
        except Invalid as error:
            self._state.problems.add("PodDisruptionBudget", str(change.key), error)

    def _on_namespace(self, change: ObjectChange[dict[str, Any]]) -> None:
        if change.type == "DELETED" or change.object is None:
            self._state.remove_namespace(change.key.name)
        else:
            self._state.upsert_namespace(change.key.name, change.object["metadata"].get("labels") or {})

    def _feed(self, kind: str) -> Callable[[ObjectChange[dict[str, Any]]], None]:
        sink = self._state.sink(kind)

        def take(change: ObjectChange[dict[str, Any]]) -> None:
            if change.type == "DELETED" or change.object is None:
                sink.apply((change,))
            else:
                self._state.load(({**change.object, "kind": kind},))

        return take


def _claim_changed(before: NodeClaim, after: NodeClaim) -> bool:
    """Whether anything that a row or the usage depends on is different."""
    return (
        before.provider_id != after.provider_id
        or before.is_deleting != after.is_deleting
        or before.metadata.labels != after.metadata.labels
        or before.status.capacity != after.status.capacity
    )


def _node_changed(before: Node, after: Node) -> bool:
    return (
        before.metadata.labels != after.metadata.labels
        or before.spec != after.spec
        or before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
        or before.status.allocatable != after.status.allocatable
        or before.status.capacity != after.status.capacity
    )
