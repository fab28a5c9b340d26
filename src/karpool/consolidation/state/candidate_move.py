"""A move during the search, its new nodes, and the reason if there is none."""

from dataclasses import dataclass
from typing import NamedTuple

from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import MoveVerdict
from karpool.model.infeasible import Infeasible
from karpool.packing.relocation.single_node import FittingTypes

Pods = dict[int, int]  # shape to number of pods


@dataclass(frozen=True, slots=True, eq=False)
class CandidateMove:
    """Nodes to remove, where their pods go (shape, row, number), and the new nodes with their pods."""

    rows: tuple[int, ...]
    placed: tuple[tuple[int, int, int], ...]
    new: tuple[tuple[FittingTypes, Pods], ...]
    verdict: MoveVerdict
    reason: DisruptionReason = DisruptionReason.UNDERUTILIZED
    unplaced: int = 0  # pods without cost that find no place

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
    """Why some nodes cannot be removed. `shapes` are those that find no place."""

    why: Infeasible[ConsolidationReason]
    shapes: tuple[int, ...] = ()


class RelocationAttempt(NamedTuple):
    """The tried places of the pods of removed nodes, and the pods without a place."""

    placed: list[tuple[int, int, int]]
    left: Pods
