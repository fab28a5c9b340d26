"""Disruption candidates: which nodes may be disrupted, and which of them a method considers.

The checks are a list in upstream's order; the first that fails gives the reason.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from karpool.consolidation.policy.scoring import is_empty, node_cost
from karpool.model.karpenter.budgets import allowed_disruptions, budgets_of
from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    DEFAULT_DISRUPTION,
    DO_NOT_DISRUPT,
    INITIALIZED,
    NODEPOOL,
    Disruption,
    NodeClaim,
    NodePool,
)
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    blocking_budget,
    is_active,
    is_evictable,
    is_protected,
    is_reschedulable,
    running_seconds,
)
from karpool_fleet.karpenter.lifecycle.conditions import CONSOLIDATABLE, INSTANCE_TERMINATING
from karpool_fleet.karpenter.provisioning.market import LaunchMarket
from karpool_fleet.karpenter.view import KarpenterState

EMPTY = "Empty"
UNDERUTILIZED = "Underutilized"
NEVER = "Never"
WHEN_EMPTY = "WhenEmpty"
BALANCED = "Balanced"


@dataclass(frozen=True)
class DisruptionCandidate:
    claim: NodeClaim
    node: Node
    pool: NodePool
    pods: tuple[Pod, ...] = field(repr=False)  # pods that need another node
    price: float  # 0 if it is not known
    cost: float  # disruption cost

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def type(self) -> str:
        return self.node.labels.get(INSTANCE_TYPE, "")

    @property
    def capacity_type(self) -> str:
        return self.node.labels.get(CAPACITY_TYPE, "")

    @property
    def disruption(self) -> Disruption:
        return self.pool.spec.disruption or DEFAULT_DISRUPTION

    @property
    def is_empty(self) -> bool:
        return is_empty(self.cost)

    @property
    def rank(self) -> float:
        """Return the savings per disruption cost, at best."""
        return self.price / self.cost


class Candidates:
    def __init__(self, view: KarpenterState, market: LaunchMarket, is_queued: Callable[[str], bool]) -> None:
        self._view = view
        self._market = market
        self._is_queued = is_queued

    def all(
        self, now: float, *, refuse: Callable[[NodeClaim, Node | None, str], None]
    ) -> list[DisruptionCandidate]:
        """Return the candidates; `refuse` is called for other nodes, with the reason."""
        candidates: list[DisruptionCandidate] = []
        for claim in self._view.claims.objects():
            if self._is_queued(claim.name):
                continue
            node = next(iter(self._view.nodes_of(claim)), None)
            reason = self._blocked(claim, node, now)
            if reason:
                refuse(claim, node, reason)
            elif node is not None:
                candidates.append(self._candidate(claim, node))
        return sorted(candidates, key=lambda candidate: (-candidate.rank, candidate.name))

    def _blocked(self, claim: NodeClaim, node: Node | None, now: float) -> str:
        if node is None:
            return "nodeclaim does not have an associated node"
        if node.labels.get(INITIALIZED) != "true":
            return "node isn't initialized"
        if self._view.is_leaving(claim, node):
            return "node is deleting or marked for deletion"
        if self._view.is_nominated(node.name):
            return "node is nominated for a pending pod"
        if node.annotations.get(DO_NOT_DISRUPT) == "true":
            return f'disruption is blocked through the "{DO_NOT_DISRUPT}" annotation'
        if NODEPOOL not in node.labels:
            return f'node doesn\'t have required label "{NODEPOOL}"'
        if self._view.pools.get(node.labels[NODEPOOL]) is None:
            return f"NodePool not found (NodePool={node.labels[NODEPOOL]})"
        return self._blocking_pod(node, now)

    def _blocking_pod(self, node: Node, now: float) -> str:
        pods = list(self._view.pods_on(node.name).values())
        for pod in pods:
            if is_active(pod) and is_protected(pod, running_seconds(pod, now)):
                return f'pod has "{DO_NOT_DISRUPT}" annotation (Pod={pod.metadata.key})'
        for pod in pods:
            if is_evictable(pod, protected=False) and blocking_budget(
                pod, self._view.budgets(pod.metadata.namespace)
            ):
                return f"pdb prevents pod evictions (Pod={pod.metadata.key})"
        return ""

    def _candidate(self, claim: NodeClaim, node: Node) -> DisruptionCandidate:
        pool = self._view.pools.get(node.labels[NODEPOOL])
        assert pool is not None
        pods = tuple(pod for pod in self._view.pods_on(node.name).values() if is_reschedulable(pod))
        return DisruptionCandidate(
            claim, node, pool, pods, self._market.price(node.labels) or 0.0, node_cost(pods)
        )

    # Candidates of a method

    def for_emptiness(self, one: DisruptionCandidate) -> str:
        """Return why not, or an empty text."""
        if one.pool.spec.replicas is not None or one.disruption.consolidate_after == NEVER:
            return "consolidation disabled"
        if not one.is_empty:
            return "not empty"
        return "" if one.claim.is_true(CONSOLIDATABLE) else "not consolidatable"

    def for_consolidation(self, one: DisruptionCandidate) -> str:
        if one.pool.spec.replicas is not None:
            return "static"
        if one.type not in self._market.catalogue.types:
            return f'Instance Type "{one.type}" not found'
        for label in (CAPACITY_TYPE, ZONE):
            if label not in one.node.labels:
                return f'Node does not have label "{label}"'
        if one.disruption.consolidate_after == NEVER:
            return f'NodePool "{one.pool.name}" has consolidation disabled'
        if one.is_empty:
            return "empty"
        if one.disruption.consolidation_policy == WHEN_EMPTY:
            return f'NodePool "{one.pool.name}" has consolidation policy WhenEmpty, but node is not empty'
        if one.disruption.consolidation_policy == BALANCED:
            return "balanced consolidation is not simulated"
        return "" if one.claim.is_true(CONSOLIDATABLE) else "not consolidatable"


def remaining_budgets(view: KarpenterState, reason: str, now: float) -> dict[str, int]:
    """Return how many more nodes of each pool may be disrupted for this reason."""
    nodes: dict[str, int] = {}
    consuming: dict[str, int] = {}
    for claim, node in _counted(view):
        pool = claim.pool_name
        nodes[pool] = nodes.get(pool, 0) + 1
        if not node.is_ready or view.is_leaving(claim, node):
            consuming[pool] = consuming.get(pool, 0) + 1
    left: dict[str, int] = {}
    for node_pool in view.pools.objects():
        budgets = budgets_of(node_pool.spec.disruption or DEFAULT_DISRUPTION)
        grant = allowed_disruptions(budgets, nodes.get(node_pool.name, 0), reason, now)
        left[node_pool.name] = max(0, grant - consuming.get(node_pool.name, 0))
    return left


def _counted(view: KarpenterState) -> Iterable[tuple[NodeClaim, Node]]:
    for claim in view.claims.objects():
        if claim.is_true(INSTANCE_TERMINATING):
            continue
        for node in view.nodes_of(claim)[:1]:
            if node.labels.get(INITIALIZED) == "true":
                yield claim, node
