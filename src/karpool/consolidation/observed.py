"""What consolidation sees of a cluster, kept current by informers, or filled from a file.

Feed it through `watches`, next to the `ClusterState` that gives the snapshots; ask it
for a `view`. What is needed of a pod is worked out when it arrives and kept in
columns. An object that cannot be understood is listed in the view's problems.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from karpool.cluster.changes import PutDropSink
from karpool.cluster.market.market import Market
from karpool.cluster.market.prices import node_price
from karpool.cluster.nodes.expected import DaemonOverhead, counted_capacity
from karpool.cluster.nodes.state_node import StateNode
from karpool.cluster.pods.disruption_store import PodDisruptionStore
from karpool.cluster.problems import UnreadableObjects
from karpool.consolidation.execution.options import STOP_NAME, STOP_NAMESPACE
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.view import ClusterView, NodeRemoval
from karpool.kube.watched import WatchedKind
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.node_class import NodeClass
from karpool.model.karpenter.objects import CompiledPool, NodeClaim, NodePool, pool_of
from karpool.model.kubernetes.api_resources import (
    CONFIGMAPS,
    DAEMONSETS,
    EC2NODECLASSES,
    NODECLAIMS,
    NODEPOOLS,
    NODES,
    PDBS,
    PODS,
    ListOptions,
    ObjectKey,
)
from karpool.model.kubernetes.meta import ObjectMeta, WireObject
from karpool.model.kubernetes.node import ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb, PodDisruptionBudget, budget_of
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.workload import pod_template
from karpool.model.labels import EVERYTHING
from karpool.model.requirements import ValueSet, combined
from karpool.model.resources import NODES as NODE_COUNT
from karpool.model.resources import Resources, add
from karpool.packing.new_nodes.offerings import StockOut
from karpool.packing.tables.room import Room

STOP_KEY = "stop"
_YES = frozenset(("true", "yes", "1", "on"))


class Settings(WireObject, frozen=True):
    """A ConfigMap."""

    data: dict[str, str] | None = None


class Observed:
    def __init__(
        self, market: Market | None = None, *, stop_switch: tuple[str, str] = (STOP_NAMESPACE, STOP_NAME)
    ) -> None:
        self.market = market or Market()
        self.pods = PodDisruptionStore()
        self.problems = UnreadableObjects()
        self._stop_switch = stop_switch
        self._stop: str = ""
        self._nodes: dict[str, Node] = {}
        self._claims: dict[str, NodeClaim] = {}
        self._machines: dict[str, StateNode] = {}  # of the last view, with what was read off them
        self._priced = self.market.version  # as it was then
        self._pools: dict[str, CompiledPool] = {}
        self._pool_objects: dict[str, NodePool] = {}
        self._broken: dict[str, str] = {}
        self._zones: dict[str, frozenset[str]] = {}
        self._budgets: dict[ObjectKey, CompiledPdb] = {}
        self._daemons = DaemonOverhead()

    @cached_property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        namespace, name = self._stop_switch
        switch = ListOptions(namespace=namespace, field_selector=f"metadata.name={name}")
        return (
            WatchedKind(NODES, Node, PutDropSink(self.put_node, self._drop_node)),
            WatchedKind(PODS, Pod, PutDropSink(self.pods.put, self.pods.drop)),
            WatchedKind(NODEPOOLS, NodePool, PutDropSink(self.put_pool, self._drop_pool), optional=True),
            WatchedKind(NODECLAIMS, NodeClaim, PutDropSink(self.put_claim, self._drop_claim), optional=True),
            WatchedKind(
                EC2NODECLASSES, NodeClass, PutDropSink(self.put_class, self._drop_class), optional=True
            ),
            WatchedKind(PDBS, PodDisruptionBudget, PutDropSink(self.put_budget, self._drop_budget)),
            WatchedKind(
                DAEMONSETS, dict, PutDropSink(self.put_daemon_set, self._drop_daemon_set), optional=True
            ),
            WatchedKind(
                CONFIGMAPS, Settings, PutDropSink(self.put_switch, self._drop_switch), switch, optional=True
            ),
        )

    # Feeding

    def put_node(self, key: ObjectKey, node: Node) -> None:
        self._nodes[node.name] = node
        self.market.learn(node)

    def _drop_node(self, key: ObjectKey) -> None:
        self._nodes.pop(key.name, None)

    def put_claim(self, key: ObjectKey, claim: NodeClaim) -> None:
        self._claims[claim.name] = claim
        if claim.is_launched:
            self.market.learn(claim)

    def _drop_claim(self, key: ObjectKey) -> None:
        self._claims.pop(key.name, None)

    def put_pool(self, key: ObjectKey, pool: NodePool) -> None:
        self.market.see_pool(pool)
        self._pool_objects[pool.name] = pool
        try:
            self._pools[pool.name] = pool_of(pool)
            self._broken.pop(pool.name, None)
        except Invalid as error:
            self._pools.pop(pool.name, None)
            self._broken[pool.name] = str(error)

    def _drop_pool(self, key: ObjectKey) -> None:
        for known in (self._pools, self._pool_objects, self._broken):
            known.pop(key.name, None)

    def put_class(self, key: ObjectKey, found: NodeClass) -> None:
        self._zones[key.name] = found.zones
        self.market.see_zones(sorted(self._zones[key.name]))

    def _drop_class(self, key: ObjectKey) -> None:
        self._zones.pop(key.name, None)

    def put_budget(self, key: ObjectKey, pdb: PodDisruptionBudget) -> None:
        try:
            self._budgets[key] = budget_of(pdb)
            self.problems.clear("PodDisruptionBudget", str(key))
        except Invalid as error:
            # What it protects cannot be told; as it selects pods that nobody may touch, nothing of the
            # namespace moves until it can be read.
            self._budgets[key] = CompiledPdb(
                key.namespace,
                key.name,
                EVERYTHING,
                0,
                is_fully_blocking=True,
                frees_unready_pods=False,
            )
            self.problems.add("PodDisruptionBudget", str(key), error)

    def _drop_budget(self, key: ObjectKey) -> None:
        self._budgets.pop(key, None)
        self.problems.clear("PodDisruptionBudget", str(key))

    def put_daemon_set(self, key: ObjectKey, raw: dict[str, Any]) -> None:
        try:
            self._daemons.put(key, shape_of(pod_template({**raw, "kind": "DaemonSet"}).pod))
            self.problems.clear("DaemonSet", str(key))
        except Invalid as error:
            self.problems.add("DaemonSet", str(key), error)

    def _drop_daemon_set(self, key: ObjectKey) -> None:
        self._daemons.remove(key)

    def put_switch(self, key: ObjectKey, found: Settings) -> None:
        if (key.namespace, key.name) == self._stop_switch:
            asked = (found.data or {}).get(STOP_KEY, "").strip().lower()
            self._stop = str(key) if asked in _YES else ""

    def _drop_switch(self, key: ObjectKey) -> None:
        if (key.namespace, key.name) == self._stop_switch:
            self._stop = ""

    # Reading

    def claim(self, name: str) -> NodeClaim | None:
        return self._claims.get(name)

    def view(
        self,
        snapshot: Room,
        *,
        unavailable: Collection[StockOut] = (),
        in_flight: Collection[str] = (),
        recent: Sequence[NodeRemoval] = (),
        problems: Iterable[str] = (),
    ) -> ClusterView:
        budgets = list(self._budgets.values())
        by_provider = self._claims_by_provider()
        catalogue = self.market.catalogue
        prices: dict[tuple[str, str, str], float | None] = {}
        kept = self._machines if self._priced == self.market.version else {}

        def machine(node: Node | None, claim: NodeClaim | None) -> StateNode:
            labels = node.labels if node is not None else claim.labels if claim is not None else {}
            kind = tuple(labels.get(key, "") for key in _PRICED_BY)
            key = (kind[0], kind[1], kind[2])
            if key not in prices:
                prices[key] = node_price(catalogue, labels)
            return StateNode(node, claim, prices[key])

        machines: list[StateNode] = []
        used: set[str] = set()
        for name in snapshot.names:
            node = self._nodes.get(name)
            claim = self._claim_of(name, node, by_provider, used)
            known = kept.get(name)
            if node is None:
                machines.append(StateNode(Node(metadata=ObjectMeta(name=name)), claim))
            elif known is not None and known.node is node and known.claim is claim:
                machines.append(known)
            else:
                machines.append(machine(node, claim))
        self._machines = dict(zip(snapshot.names, machines, strict=True))
        self._priced = self.market.version
        waiting = [claim for name, claim in self._claims.items() if name not in used]
        return ClusterView(
            snapshot=snapshot,
            pods=self.pods.table(snapshot, budgets),
            machines=machines,
            claims_without_node=[machine(None, claim) for claim in waiting],
            pools={name: self._in_its_zones(pool) for name, pool in self._pools.items()},
            pool_objects=dict(self._pool_objects),
            broken_pools=dict(self._broken),
            budgets=budgets,
            offerings=self.market.offerings,
            daemons=tuple(self._daemons.shapes.values()),
            usage=self._usage([*machines, *(StateNode(None, claim) for claim in waiting)]),
            unavailable=tuple(unavailable),
            pending=self.pods.pending(snapshot),
            nominated=self.pods.nominated(),
            in_flight=frozenset(in_flight),
            stop=self.stop_reason(),
            recent=tuple(recent),
            problems=(*problems, *map(str, self.problems), *self._broken_texts(), *self.pods.problems()),
        )

    def stop_reason(self) -> Infeasible[ConsolidationReason] | None:
        if not self._stop:
            return None
        message = f'consolidation is stopped by ConfigMap {self._stop}; set {STOP_KEY}: "false" to go on'
        return Infeasible(ConsolidationReason.STOPPED, message, f"configmap {self._stop}")

    def _broken_texts(self) -> Iterable[str]:
        return (f"NodePool {name}: {why}" for name, why in self._broken.items())

    def _claims_by_provider(self) -> dict[str, NodeClaim]:
        return {claim.provider_id: claim for claim in self._claims.values() if claim.provider_id}

    def _claim_of(
        self, name: str, node: Node | None, by_provider: dict[str, NodeClaim], used: set[str]
    ) -> NodeClaim | None:
        """Joined by provider ID; a second node of one claim stands without."""
        provider = node.spec.provider_id if node is not None else ""
        claim = by_provider.get(provider) if provider else None
        if claim is None or claim.name in used:
            return None
        used.add(claim.name)
        return claim

    def _in_its_zones(self, pool: CompiledPool) -> CompiledPool:
        zones = self._zones.get(pool.node_class_ref.name)
        if not zones:
            return pool
        return replace(pool, requirements=combined(pool.requirements, {ZONE: ValueSet(zones)}))

    def _usage(self, machines: Iterable[StateNode]) -> dict[str, Resources]:
        """Only of pools that have limits: reading quantities of every node takes its time."""
        usage: dict[str, Resources] = {name: {} for name, pool in self._pools.items() if pool.limits}
        if not usage:
            return usage
        for machine in machines:
            if machine.pool not in usage or machine.is_leaving:
                continue
            try:
                amounts = counted_capacity(machine.claim, machine.node)
            except Invalid as error:
                self.problems.add("Node", machine.name, error)
                continue
            add(usage[machine.pool], {**amounts, NODE_COUNT: 1})
        return usage


_PRICED_BY = ("node.kubernetes.io/instance-type", ZONE, "karpenter.sh/capacity-type")
