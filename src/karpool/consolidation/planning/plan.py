"""What a plan is: the moves to make, those refused, every node that stays and why, before and after.

Plain values with their numbers and reasons. The command line, the report, events,
metrics and the controller show or carry out this and nothing else; making one is in
`planning`, looking at one again before acting in `validation`.
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
    EMPTY = "empty"  # nothing on the nodes would be missed
    DELETE = "delete"  # their pods fit on other nodes
    REPLACE = "replace"  # new nodes come first


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node that goes."""

    name: str
    claim: str  # of the NodeClaim that is deleted
    pool: str
    instance_type: str
    zone: str
    capacity_type: str
    price_per_hour: float | None
    disruption: float  # 1 and what its pods cost
    claim_uid: str = ""
    list_price_per_hour: float | None = None  # `price_per_hour` is what it adds to the bill


@dataclass(frozen=True, slots=True)
class MovedPod:
    """Where a pod goes: to `node`, or to new node number `new_node` of the move. Neither: it may stay
    without a place, which only pods that cost nothing do."""

    pod: str  # namespace/name
    source: str
    cost: float
    node: str = ""
    new_node: int | None = None


@dataclass(frozen=True, slots=True)
class ReplacementNode:
    """A node to ask for. Any of `options` holds its pods and is cheap enough; the first is expected."""

    pool: str
    options: tuple[LaunchOption, ...]
    pods: tuple[str, ...]
    requests: Mapping[str, int] = field(hash=False)  # of its pods and the least daemon overhead

    @property
    def chosen(self) -> LaunchOption:
        return self.options[0]

    @property
    def price_per_hour(self) -> float:
        """Of what is expected; new nodes without a known price are never planned."""
        price = self.chosen.price_per_hour
        assert price is not None
        return price


@dataclass(frozen=True, slots=True)
class Move:
    """Take nodes away, all or none of them. `id` is the same for the same nodes and new nodes."""

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
        """Pods that would be missed while they move."""
        return sum(pod.cost > 0 for pod in self.pods)


@dataclass(frozen=True, slots=True)
class RejectedMove:
    """A move that could be made and is not: by score, budget, window or switch."""

    move: Move
    why: tuple[Infeasible[ConsolidationReason], ...]


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """One pool in numbers: what may still be disrupted, and by what that is limited."""

    name: str
    policy: str
    nodes: int
    cost_per_hour: float
    disruption: float
    unpriced: int
    allowed: Mapping[str, int] = field(hash=False)  # by disruption reason, before the plan
    why: tuple[Infeasible[ConsolidationReason], ...] = ()  # what closes it
    k: int | None = None  # None: its moves are not scored


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """`use` is the share of each resource that pods ask for, of what nodes offer."""

    nodes: int
    pods: int
    price_per_hour: float
    unpriced: int
    use: Mapping[str, float] = field(hash=False)
    by_type: Mapping[str, int] = field(hash=False)  # nodes by instance type
    by_pool: Mapping[str, int] = field(hash=False)
    list_price_per_hour: float | None = None  # where something was contracted: `price_per_hour` is the bill


@dataclass(frozen=True, slots=True)
class NotConsidered:
    """What a deadline kept from being considered."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class PlanCertificate:
    """How near a plan is to the best there could be.

    `possible_per_hour` is what no plan could save more than; None: `problem` says why nobody can tell.
    `at_disruption`: among those that disturb no more than this one. `leaves_out` is what the bound does not
    know of, so that less may be possible than it says, and never more.
    """

    possible_per_hour: float | None
    problem: str = ""
    at_disruption: float | None = None
    whole_nodes: bool = False  # fractions of nodes are not counted on
    leaves_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsolidationPlan:
    """Moves are in the order in which they are to be made: one may need what one before it changed.

    `fingerprint` is of everything that decided it; see `validation` for how staleness is judged.
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
        None  # the switch that stops everything; moves are then all rejected
    )
    certificate: PlanCertificate | None = None  # None: nobody asked for one

    @property
    def still_possible(self) -> float | None:
        """At most this share of what the cluster costs after the plan could be saved still; None: unknown."""
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
