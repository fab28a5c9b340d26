"""A node joined with the claim it came from, as everybody sees it."""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from karpool.model.karpenter.objects import CAPACITY_TYPE, DO_NOT_DISRUPT, INITIALIZED, NODEPOOL, NodeClaim
from karpool.model.kubernetes.meta import NO_LABELS, condition
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE, Node
from karpool.model.kubernetes.times import moment

_ENCODER = msgspec.json.Encoder(order="deterministic")


class NodeStage(Enum):
    """How far a node is, written once for everybody."""

    LAUNCHING = "Launching"  # a claim without a machine
    REGISTERING = "Registering"  # a machine without a node that is known to be its
    STARTING = "Starting"  # a node that is not ready for pods yet
    INITIALIZED = "Initialized"
    LEAVING = "Leaving"


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
    blocked: int  # pods on it that cannot be read
    reserved: str


@dataclass(frozen=True)
class StateNode:
    """A node and the claim it came from; one of them may be missing.

    What is read off them is kept: of some hundred nodes few change between two plans.
    """

    node: Node | None
    claim: NodeClaim | None
    price_per_hour: float | None = None
    blocked: int = 0  # pods on it that cannot be read: nothing may be placed there, nor taken away
    reserved: str = ""  # who holds it for something that is still to come: a scale-up, a move, a buffer

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
    def stage(self) -> NodeStage:
        claim, node = self.claim, self.node
        if self.is_leaving:
            return NodeStage.LEAVING
        if node is None:
            launched = claim is not None and bool(claim.provider_id)
            return NodeStage.REGISTERING if launched else NodeStage.LAUNCHING
        if self.is_initialized or not (claim is not None or self.pool):
            return NodeStage.INITIALIZED
        return NodeStage.STARTING

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
            blocked=self.blocked,
            reserved=self.reserved,
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
            (self.blocked, self.reserved),
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
