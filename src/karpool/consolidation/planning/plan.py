"""The data model of a plan: moves, rejected moves, kept nodes with reasons, totals before and after.

Plans are plain values with their numbers and reasons. The command line, the report, events, metrics and the
controller show or execute exactly these. `planner` makes a plan, `execution/validation` validates one before
it is executed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import MoveVerdict
from karpool.model.infeasible import Infeasible
from karpool.packing.new_nodes.pack_result import LaunchOption


class MoveKind(StrEnum):
    EMPTY = "empty"  # no pod on the nodes has a disruption cost
    DELETE = "delete"  # their pods fit on other nodes
    REPLACE = "replace"  # new nodes are launched first


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node to remove."""

    name: str
    claim: str  # name of the NodeClaim to delete
    pool: str
    instance_type: str
    zone: str
    capacity_type: str
    price_per_hour: float | None
    disruption: float  # 1 plus the cost of its pods
    claim_uid: str = ""
    list_price_per_hour: float | None = None  # `price_per_hour` is what it adds to the bill


@dataclass(frozen=True, slots=True)
class MovedPod:
    """The destination of a pod: `node`, or the new node number `new_node` of the move. Without either, the
    pod may stay pending, which is only planned for pods that cost nothing.
    """

    pod: str  # namespace/name
    source: str
    cost: float
    node: str = ""
    new_node: int | None = None


@dataclass(frozen=True, slots=True)
class ReplacementNode:
    """A node to request. Any of `options` holds its pods and is cheap enough; the first is expected."""

    pool: str
    options: tuple[LaunchOption, ...]
    pods: tuple[str, ...]
    requests: Mapping[str, int] = field(hash=False)  # of its pods and the smallest daemon overhead

    @property
    def chosen(self) -> LaunchOption:
        return self.options[0]

    @property
    def price_per_hour(self) -> float:
        """The price of the expected option; new nodes without a known price are never planned."""
        price = self.chosen.price_per_hour
        assert price is not None
        return price


@dataclass(frozen=True, slots=True)
class Move:
    """Removes nodes, all or none of them. `id` is the same for the same nodes and new nodes."""

    id: str
    kind: MoveKind
    reason: DisruptionReason
    nodes: tuple[SourceNode, ...]
    pods: tuple[MovedPod, ...]
    new_nodes: tuple[ReplacementNode, ...]
    verdict: MoveVerdict
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.pool for node in self.nodes))

    @property
    def savings_per_hour(self) -> float:
        return self.verdict.savings_per_hour

    @property
    def disruption(self) -> float:
        return self.verdict.disruption

    @property
    def score(self) -> float | None:
        return self.verdict.score

    @property
    def disturbed(self) -> int:
        """The number of pods with a disruption cost."""
        return sum(pod.cost > 0 for pod in self.pods)


@dataclass(frozen=True, slots=True)
class RejectedMove:
    """A possible move that is not made because of score, budget, window or switch."""

    move: Move
    why: tuple[Infeasible[ConsolidationReason], ...]


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """The numbers of one pool: what may still be disrupted, and what limits it."""

    name: str
    policy: str
    nodes: int
    cost_per_hour: float
    disruption: float
    unpriced: int
    allowed: Mapping[str, int] = field(hash=False)  # by disruption reason, before the plan
    why: tuple[Infeasible[ConsolidationReason], ...] = ()  # what closes the pool
    k: int | None = None  # None: its moves are not scored


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """`use` is the requested share of each allocatable resource."""

    nodes: int
    pods: int
    price_per_hour: float
    unpriced: int
    use: Mapping[str, float] = field(hash=False)
    by_type: Mapping[str, int] = field(hash=False)  # nodes by instance type
    by_pool: Mapping[str, int] = field(hash=False)
    list_price_per_hour: float | None = None  # under a contract; `price_per_hour` is the bill then


@dataclass(frozen=True, slots=True)
class NotConsidered:
    """What a deadline kept from being considered."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class PlanCertificate:
    """How close a plan is to the optimum.

    `possible_per_hour` is an upper bound on the saving of any plan; None: unknown, and `problem` says why.
    `at_disruption`: among plans that disturb no more than this one. `leaves_out` lists what the bound
    ignores; the real optimum may be lower than the bound, never higher.
    """

    possible_per_hour: float | None
    problem: str = ""
    at_disruption: float | None = None
    whole_nodes: bool = False  # the bound does not use fractions of nodes
    leaves_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsolidationPlan:
    """Moves are in the order of execution: a move may depend on an earlier one.

    `fingerprint` covers everything that decided the plan; `validation` defines staleness.
    """

    made_at: float
    fingerprint: str
    moves: tuple[Move, ...]
    rejected: tuple[RejectedMove, ...]
    held: tuple[KeptNode, ...]
    pools: tuple[PoolSummary, ...]
    before: ClusterTotals
    after: ClusterTotals
    problems: tuple[str, ...] = ()
    not_looked_at: tuple[NotConsidered, ...] = ()
    stopped: Infeasible[ConsolidationReason] | None = (
        None  # the switch that stops all moves; all are rejected then
    )
    certificate: PlanCertificate | None = None  # None: not requested

    @property
    def still_possible(self) -> float | None:
        """The share of the cluster's cost after the plan that could still be saved at most; None: unknown."""
        if self.certificate is None or self.certificate.possible_per_hour is None:
            return None
        left = max(self.certificate.possible_per_hour - self.savings_per_hour, 0.0)
        return left / self.after.price_per_hour if self.after.price_per_hour > 0 else 0.0

    @property
    def savings_per_hour(self) -> float:
        return sum(move.savings_per_hour for move in self.moves)

    @property
    def disruption(self) -> float:
        return sum(move.disruption for move in self.moves)

    @property
    def disturbed(self) -> int:
        return sum(move.disturbed for move in self.moves)
