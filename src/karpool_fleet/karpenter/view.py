"""Karpenter's state of the cluster, including its own writes, marks and nominations.

It is a `Cluster` whose rows are the expected nodes. Nodes, claims and pools are added as soon as they are
written. Usage of pools counts as in Karpenter, which differs from an estimate of the future: a claim without
a machine is a node without a size.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import DELETED, MODIFIED, ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import NODECLAIMS, NODES, PODS, ClusterKind
from karpool.cluster.market.market import Market
from karpool.cluster.nodes.expected import counted_capacity, row_name
from karpool.cluster.nodes.state_node import StateNode
from karpool.cluster.snapshot import Snapshot
from karpool.kube.expiring import ExpiringSet
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.model.karpenter.node_overlay import NodeOverlays
from karpool.model.karpenter.objects import NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import NODEPOOLS, ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb, is_provisionable
from karpool.model.resources import NODES as NODE_COUNT
from karpool.model.resources import Resources, add
from karpool_fleet.karpenter.newest import Newest
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.watched_cluster import ClusterFeeds, PodsByNode

PodListener = Callable[[Pod | None, Pod | None], None]  # before, after
_ASPECTS = (
    Aspect.NAMESPACES
    | Aspect.VOLUMES
    | Aspect.NODECLAIMS
    | Aspect.DAEMONS
    | Aspect.BUDGETS
    | Aspect.BUFFERS
    | Aspect.OVERLAYS
)
_OWN_KINDS = (NODECLAIMS, NODES, PODS)  # fed by this class, before other listeners


class KarpenterState:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock = context.clock
        self.claims: Newest[NodeClaim] = Newest(context, NODECLAIMS.resource, NodeClaim)
        self.nodes: Newest[Node] = Newest(context, NODES.resource, Node)
        self.pools: Newest[NodePool] = Newest(context, NODEPOOLS, NodePool)
        self.provisionable: dict[ObjectKey, Pod] = {}
        self.on_pod: list[PodListener] = []
        self.on_usage: list[Callable[[str], None]] = []  # called with the name of the pool
        self.on_buffers: list[Callable[[], None]] = []
        # The cloud knows the prices; the cluster must not learn types into its catalogue.
        self._cluster = Cluster(_ASPECTS, market=Market(Catalogue("", "")), expected=True, shares=False)
        self._cluster.nodes.listeners.append(self._on_joined)
        self._pods = context.informers.of(PODS.resource, Pod)
        self._feeds = ClusterFeeds(context, self._cluster, but=_OWN_KINDS)
        self._pods_by_node = PodsByNode()
        self._leaving: dict[str, None] = {}  # rows in deletion
        self._marked: dict[str, None] = {}  # claims that a command will delete
        self._nominated = ExpiringSet[str](context.clock)  # by row
        self._counted: dict[str, tuple[str, Resources]] = {}  # contribution of each claim or node to its pool
        self._usage: dict[str, Resources] = {}
        # First of all listeners, so that the others see the new state.
        self.claims.subscribe(self._tell(NODECLAIMS))
        self.nodes.subscribe(self._tell(NODES))

    async def start(self) -> None:
        """Load the current state; listeners must have been added before."""
        await self._context.informers.synced()
        self._feeds.start(self._on_other)
        for kind in (self.pools, self.claims, self.nodes):
            kind.start()
        self._pods.on_change(self._on_pod)
        for kind in (self.pools, self.claims, self.nodes):
            await kind.catch_up()

    # Reading

    @property
    def is_synced(self) -> bool:
        """Whether every claim has a machine; before that Karpenter decides nothing about capacity."""
        waiting = (state.claim for state in self._cluster.nodes.without_node())
        return all(claim is None or claim.provider_id or claim.is_deleting for claim in waiting)

    @property
    def overlays(self) -> NodeOverlays:
        return self._cluster.market.overlays

    def pods_on(self, node: str) -> Mapping[ObjectKey, Pod]:
        return self._pods_by_node.on(node)

    def pod(self, key: ObjectKey) -> Pod | None:
        return self._pods.get(key)

    def nodes_of(self, claim: NodeClaim) -> list[Node]:
        return self.nodes_with(claim.provider_id)

    def nodes_with(self, provider_id: str) -> list[Node]:
        """Return the nodes by name; more than one is an error in the cluster."""
        nodes = (self.nodes.get(name) for name in self._cluster.nodes.nodes_with(provider_id))
        return [node for node in nodes if node is not None]

    def claim_of(self, node: Node) -> NodeClaim | None:
        return self.claims.get(self._cluster.nodes.claim_with(node.spec.provider_id))

    def claim_on(self, node: str) -> NodeClaim | None:
        machine = self.nodes.get(node)
        return None if machine is None else self.claim_of(machine)

    def usage(self, pool: str) -> Mapping[str, int]:
        """Return the capacity of a pool's nodes and claims that are not in deletion; `nodes` counts them."""
        return self._usage.get(pool, {})

    def usages(self) -> Mapping[str, Mapping[str, int]]:
        return self._usage

    def budgets(self, namespace: str) -> Iterable[CompiledPdb]:
        return self._cluster.budgets(namespace)

    def snapshot(self) -> Snapshot:
        """Return every node, including those in deletion."""
        return self._cluster.snapshot()

    def leaving(self) -> list[str]:
        """Return the rows of nodes that are in deletion, or will be when a command is done."""
        return list(self._leaving)

    # Our own marks

    def nominate(self, row: str, seconds: float) -> None:
        self._nominated.put(row, seconds)

    def is_nominated(self, row: str) -> bool:
        return row in self._nominated

    def mark(self, claim: NodeClaim, *, going: bool) -> None:
        """Mark a claim that a command will delete, or remove the mark."""
        if going:
            self._marked[claim.name] = None
        else:
            self._marked.pop(claim.name, None)
        if (state := self._cluster.nodes.of_claim(claim.name)) is not None:
            self._on_joined(state, state)

    def is_leaving(self, claim: NodeClaim | None, node: Node | None) -> bool:
        if node is not None and node.metadata.deletion_timestamp is not None:
            return True
        return claim is not None and (claim.is_deleting or claim.name in self._marked)

    # Events

    def _tell(self, kind: ClusterKind) -> Callable[[Any, Any], None]:
        def tell(before: Any, after: Any) -> None:
            key = ObjectKey("", (after or before).name)
            change = ObjectChange(DELETED if after is None else MODIFIED, key, after)
            self._cluster.apply(kind, (change,), self._clock.now())
            if kind is NODECLAIMS and after is None:
                self._marked.pop(key.name, None)

        return tell

    def _on_joined(self, before: StateNode | None, after: StateNode | None) -> None:
        state = after or before
        assert state is not None
        row = row_name(state.claim, state.node)
        if after is not None and self._leaves(after):
            self._leaving[row] = None
        else:
            self._leaving.pop(row, None)
        if after is None:
            self._pass_nomination(row, state.claim.name if state.claim is not None else "")
        for told in (before, after):
            if told is not None and told.claim is not None:
                self._count(f"c/{told.claim.name}", self._cluster.nodes.of_claim(told.claim.name))
        if state.node is not None:
            alone = after if after is not None and after.claim is None else None
            self._count(f"n/{state.node.name}", alone)

    def _leaves(self, state: StateNode) -> bool:
        return state.is_leaving or (state.claim is not None and state.claim.name in self._marked)

    def _pass_nomination(self, row: str, claim: str) -> None:
        """Move the nomination of a claim to its node."""
        now = self._cluster.nodes.of_claim(claim)
        if now is not None and now.node is not None and row in self._nominated:
            longest = max(self._nominated.left(row), self._nominated.left(now.node.name))
            self._nominated.put(now.node.name, longest)
        self._nominated.pop(row)

    def _on_other(self, kind: ClusterKind) -> None:
        if kind.aspects & Aspect.BUFFERS and self.snapshot().buffers.shapes:
            for listener in self.on_buffers:
                listener()

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        self._cluster.apply(PODS, (change,), self._clock.now())
        self._pods_by_node.take(change)
        key, after = change.key, None if change.type == DELETED else change.object
        before = change.old if change.type == MODIFIED else (change.object if after is None else None)
        if after is not None and is_provisionable(after) and not after.is_terminating:
            self.provisionable[key] = after
        else:
            self.provisionable.pop(key, None)
        for listener in self.on_pod:
            listener(before, after)

    # Usage

    def _count(self, key: str, state: StateNode | None) -> None:
        pool, amounts = "", Resources()
        if state is not None and state.pool and not self._leaves(state):
            pool, amounts = state.pool, _capacity(state)
        before = self._counted.get(key, ("", {}))
        if before == (pool, amounts):
            return
        if before[0]:
            add(self._usage[before[0]], {name: -units for name, units in before[1].items()})
        self._counted.pop(key, None)
        if pool:
            self._counted[key] = (pool, amounts)
            add(self._usage.setdefault(pool, {}), amounts)
        for name in filter(None, (before[0], pool)):
            for listener in self.on_usage:
                listener(name)


def _capacity(state: StateNode) -> Resources:
    try:
        return {**counted_capacity(state.claim, state.node), NODE_COUNT: 1}
    except Invalid:
        return {NODE_COUNT: 1}  # the cluster lists what cannot be read
