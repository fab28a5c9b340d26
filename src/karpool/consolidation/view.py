"""Everything a plan is made from, as of one moment: the snapshot, and what it does not say.

A view never changes. Rows are those of its snapshot. `PodTable` is sorted by row, so
that the pods of a node are a slice. Who fills it is in `observed`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from karpool.consolidation.plan import Why
from karpool.consolidation.totals import NODE_COST, Floats
from karpool.model.disruption import DisruptionBudget
from karpool.model.karpenter import INITIALIZED, NodeClaim, NodePool, Pool
from karpool.model.node import Node
from karpool.model.resources import Resources
from karpool.model.shape import PodShape
from karpool.packing.offerings import Offerings, StockOut
from karpool.state.columns import Bools, Int32s, Int64s
from karpool.state.snapshot import Snapshot

Bytes = npt.NDArray[np.uint8]

# Flags of pods
RESCHEDULABLE = 1  # needs a new place when its node goes
ACTIVE = 2
EVICTABLE = 4  # its own do-not-disrupt wish aside
UNREADY = 8  # says that it is not ready
STARTING = 16  # has a node and has not run yet: it may be pulling its image


@dataclass(frozen=True, slots=True)
class PodTable:
    """Pods on nodes, by row. `budget` indexes `ClusterView.budgets`; -1: none, -2: several."""

    keys: Sequence[str]
    rows: Int32s
    shapes: Int32s
    costs: Floats
    flags: Bytes
    protected_until: Floats  # seconds since the epoch; inf for good
    budget: Int32s
    since: Floats  # when it was bound, started or began to end, the latest; 0 when not known
    starts: Int64s  # pods of row r: starts[r] to starts[r + 1]
    several: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # pod to names of its budgets

    def on(self, row: int) -> range:
        return range(int(self.starts[row]), int(self.starts[row + 1]))

    @property
    def moves(self) -> Bools:
        found: Bools = (self.flags & RESCHEDULABLE) != 0
        return found


@dataclass(frozen=True)
class Machine:
    """A node and the claim it came from; one of them may be missing. What is read off them is kept."""

    node: Node | None
    claim: NodeClaim | None
    price_per_hour: float | None = None

    @property
    def name(self) -> str:
        if self.node is not None:
            return self.node.name
        assert self.claim is not None
        return self.claim.name

    @cached_property
    def pool(self) -> str:
        from_node = self.node.labels.get("karpenter.sh/nodepool", "") if self.node is not None else ""
        return from_node or (self.claim.pool_name if self.claim is not None else "")

    @cached_property
    def is_initialized(self) -> bool:
        return self.node is not None and self.node.labels.get(INITIALIZED) == "true"

    @cached_property
    def is_leaving(self) -> bool:
        claim, node = self.claim, self.node
        if claim is not None and claim.is_deleting:
            return True
        return node is not None and node.metadata.deletion_timestamp is not None


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A node that was taken away, for limits per window of time."""

    pool: str
    node: str
    at: float


@dataclass(frozen=True)
class ClusterView:
    snapshot: Snapshot
    pods: PodTable
    machines: Sequence[Machine]  # by row
    claims_without_node: Sequence[Machine]
    pools: Mapping[str, Pool]
    pool_objects: Mapping[str, NodePool]
    broken_pools: Mapping[str, str]  # pools that cannot be understood, and why
    budgets: Sequence[DisruptionBudget]
    offerings: Offerings
    daemons: Sequence[PodShape] = ()
    usage: Mapping[str, Resources] = field(default_factory=dict)  # of each pool, against its limits
    unavailable: Collection[StockOut] = ()
    pending: Sequence[str] = ()  # keys of pods that Karpenter would make room for
    nominated: Collection[str] = ()  # nodes that pending pods are meant for
    in_flight: Collection[str] = ()  # nodes that a move under way takes already
    # By pod of a node that leaves, where it is meant to go; empty: to a node that is still to come.
    promised: Mapping[str, str] = field(default_factory=dict)
    stop: Why | None = None
    recent: Sequence[Disturbance] = ()
    problems: Sequence[str] = ()

    @cached_property
    def node_costs(self) -> Floats:
        """By row: what taking the node away disturbs."""
        pods = self.pods
        moving = pods.moves
        weights = np.where(moving, pods.costs, 0.0)
        found: Floats = np.bincount(pods.rows, weights=weights, minlength=self.snapshot.n).astype(np.float64)
        return NODE_COST + found

    @cached_property
    def prices(self) -> Floats:
        """By row; NaN where it is not known."""
        found = (machine.price_per_hour for machine in self.machines)
        return np.array([np.nan if price is None else price for price in found], dtype=np.float64)

    @property
    def movable(self) -> Sequence[Machine]:
        """Every machine, those without a node included."""
        return [*self.machines, *self.claims_without_node]
