"""Everything a plan is made from, as of one moment: the snapshot, and what it does not say.

A view never changes. Rows are those of its snapshot. `PodDisruptionTable` is sorted by row, so
that the pods of a node are a slice. Who fills it is in `observed`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.totals import NODE_COST, Floats
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    DO_NOT_DISRUPT,
    INITIALIZED,
    NODEPOOL,
    CompiledPool,
    NodeClaim,
    NodePool,
)
from karpool.model.kubernetes.meta import NO_LABELS, condition
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE, Node
from karpool.model.kubernetes.pod_disruption import CompiledPdb
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.kubernetes.times import moment
from karpool.model.resources import Resources
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.tables.columns import Bools, Int32s, Int64s
from karpool.packing.tables.room import Room

Bytes = npt.NDArray[np.uint8]

_ENCODER = msgspec.json.Encoder(order="deterministic")

# Flags of pods
RESCHEDULABLE = 1  # needs a new place when its node goes
ACTIVE = 2
EVICTABLE = 4  # its own do-not-disrupt wish aside
UNREADY = 8  # says that it is not ready
STARTING = 16  # has a node and has not run yet: it may be pulling its image


@dataclass(frozen=True, slots=True)
class PodDisruptionTable:
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


class NodeTraits(NamedTuple):
    """What node and claim say that rules of candidates ask for; the times apart."""

    pool_label: str
    managed: bool
    initialized: bool
    deleting: bool
    do_not_disrupt: bool
    instance_type: str
    capacity_type: str
    zone: str
    consolidatable: bool  # Karpenter's condition
    drifted: bool
    has_grace_period: bool


@dataclass(frozen=True)
class StateNode:
    """A node and the claim it came from; one of them may be missing.

    What is read off them is kept: of some hundred nodes few change between two plans.
    """

    node: Node | None
    claim: NodeClaim | None
    price_per_hour: float | None = None

    @cached_property
    def name(self) -> str:
        if self.node is not None:
            return self.node.name
        assert self.claim is not None
        return self.claim.name

    @cached_property
    def pool(self) -> str:
        from_node = self.node.labels.get(NODEPOOL, "") if self.node is not None else ""
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

    @cached_property
    def marks(self) -> NodeTraits:
        claim = self.claim
        labels = self.node.labels if self.node is not None else NO_LABELS
        annotations = self.node.annotations if self.node is not None else NO_LABELS
        return NodeTraits(
            pool_label=labels.get(NODEPOOL, ""),
            managed=claim is not None,
            initialized=self.is_initialized,
            deleting=self.is_leaving,
            do_not_disrupt=annotations.get(DO_NOT_DISRUPT) == "true",
            instance_type=labels.get(INSTANCE_TYPE, ""),
            capacity_type=labels.get(CAPACITY_TYPE, ""),
            zone=labels.get(ZONE, ""),
            consolidatable=claim is not None and claim.is_true("Consolidatable"),
            drifted=claim is not None and claim.is_true("Drifted"),
            has_grace_period=claim is not None and claim.spec.termination_grace_period is not None,
        )

    @cached_property
    def digest(self) -> bytes:
        """Of all that plans depend on, for a fingerprint of the cluster."""
        node, claim = self.node, self.claim
        said = (
            self.name,
            claim.metadata.uid if claim is not None else "",
            self.is_leaving,
            self.is_initialized,
            self.price_per_hour,
            node.annotations.get(DO_NOT_DISRUPT) if node is not None else None,
            (node.spec, node.labels) if node is not None else None,
        )
        return blake2b(_ENCODER.encode(said), digest_size=12).digest()

    @cached_property
    def initialized_at(self) -> float | None:
        """When its claim was; None while it is not."""
        found = condition(self.claim.status.conditions, "Initialized") if self.claim is not None else None
        if found is None or found.status != "True":
            return None
        return moment(found.last_transition_time) or 0.0

    @cached_property
    def last_pod_event_at(self) -> float:
        """As Karpenter noted it, which may be late; 0 when it has not."""
        return (moment(self.claim.status.last_pod_event_time) or 0.0) if self.claim is not None else 0.0

    @cached_property
    def is_counted(self) -> bool:
        """By budgets: a node of a pool that is in service, and not already being taken from under it."""
        claim = self.claim
        if claim is None or not self.pool or not self.is_initialized:
            return False
        return not claim.is_true("InstanceTerminating")

    @cached_property
    def is_down(self) -> bool:
        return self.is_leaving or self.node is None or not self.node.is_ready


@dataclass(frozen=True, slots=True)
class NodeRemoval:
    """A node that was taken away, for limits per window of time."""

    pool: str
    node: str
    at: float


@dataclass(frozen=True)
class ClusterView:
    snapshot: Room
    pods: PodDisruptionTable
    machines: Sequence[StateNode]  # by row
    claims_without_node: Sequence[StateNode]
    pools: Mapping[str, CompiledPool]
    pool_objects: Mapping[str, NodePool]
    broken_pools: Mapping[str, str]  # pools that cannot be understood, and why
    budgets: Sequence[CompiledPdb]
    offerings: Offerings
    daemons: Sequence[PodShape] = ()
    usage: Mapping[str, Resources] = field(default_factory=dict)  # of each pool, against its limits
    unavailable: Collection[StockOut] = ()
    pending: Sequence[str] = ()  # keys of pods that Karpenter would make room for
    nominated: Collection[str] = ()  # nodes that pending pods are meant for
    in_flight: Collection[str] = ()  # nodes that a move under way takes already
    # By pod of a node that leaves, where it is meant to go; empty: to a node that is still to come.
    promised: Mapping[str, str] = field(default_factory=dict)
    stop: Infeasible[ConsolidationReason] | None = None
    recent: Sequence[NodeRemoval] = ()
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
    def movable(self) -> Sequence[StateNode]:
        """Every machine, those without a node included."""
        return [*self.machines, *self.claims_without_node]
