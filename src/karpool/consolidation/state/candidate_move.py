"""A move while a plan is searched, what it buys, and why there is none."""

from dataclasses import dataclass
from typing import NamedTuple

from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import MoveVerdict
from karpool.model.infeasible import Infeasible
from karpool.packing.relocation.single_node import FittingTypes

Pods = dict[int, int]  # shape to number


@dataclass(frozen=True, slots=True, eq=False)
class CandidateMove:
    """Nodes that would go, where their pods go (shape, row, number), and the new nodes with their pods."""

    rows: tuple[int, ...]
    placed: tuple[tuple[int, int, int], ...]
    new: tuple[tuple[FittingTypes, Pods], ...]
    verdict: MoveVerdict
    reason: DisruptionReason = DisruptionReason.UNDERUTILIZED
    unplaced: int = 0  # pods that cost nothing and wait for a place

    @property
    def savings(self) -> float:
        return self.verdict.savings_per_hour


@dataclass(frozen=True, slots=True, eq=False)
class PurchasedNode:
    """A new node for some pods."""

    fitting: FittingTypes
    pods: Pods

    @property
    def price(self) -> float:
        return self.fitting.price_per_hour


@dataclass(frozen=True, slots=True)
class UnplacedShapes:
    """Why some nodes cannot go. `shapes` are those that find no place."""

    why: Infeasible[ConsolidationReason]
    shapes: tuple[int, ...] = ()


class RelocationAttempt(NamedTuple):
    """Where the pods of nodes went when they were tried, and what was left over."""

    placed: list[tuple[int, int, int]]
    left: Pods
