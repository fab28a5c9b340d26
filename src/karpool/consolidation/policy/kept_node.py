"""A node that stays, and why."""

from dataclasses import dataclass

from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.model.infeasible import Infeasible


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that stays, with all reasons, the first one first."""

    node: str
    pool: str  # empty: no pool
    price_per_hour: float | None
    disruption: float
    why: tuple[Infeasible[ConsolidationReason], ...]
