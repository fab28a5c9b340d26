"""A node joined with its NodeClaim: the unit that all components use."""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from karpool.cluster.nodes.node_facts import ClaimFacts, NodeFacts
from karpool.model.contracts.contract import BilledKind
from karpool.model.karpenter.objects import CAPACITY_TYPE, DO_NOT_DISRUPT
from karpool.model.kubernetes.meta import NO_LABELS, Labels
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE

_ENCODER = msgspec.json.Encoder(order="deterministic")


class NodeStage(Enum):
    """The stage of a node, defined once for all components."""

    LAUNCHING = "Launching"  # a claim without a machine
    REGISTERING = "Registering"  # a machine without a known node
    STARTING = "Starting"  # a node that is not yet ready for pods
    INITIALIZED = "Initialized"
    LEAVING = "Leaving"


# The conditions that Karpenter's providers repair: those of the kubelet and of monitoring agents.
_REPAIRED: dict[str, tuple[str, ...]] = {
    "Ready": ("False", "Unknown"),
    "AcceleratedHardwareReady": ("False",),
    "ContainerRuntimeReady": ("False",),
    "KernelReady": ("False",),
    "NetworkingReady": ("False",),
    "StorageReady": ("False",),
}


class NodeTraits(NamedTuple):
    """The properties of node and claim that candidate rules read, without times."""

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
    blocked: int  # number of unreadable pods
    reserved: str


@dataclass(frozen=True)
class StateNode:
    """A node and its NodeClaim; one of them may be missing.

    Values that planning derives are cached, because few nodes change between two plans.
    """

    node: NodeFacts | None
    claim: ClaimFacts | None
    price_per_hour: float | None = None
    blocked: int = 0  # number of unreadable pods: no pod may be placed there or evicted
    reserved: str = ""  # the record that reserves it: a scale-up, a move, a buffer
    list_price_per_hour: float | None = None  # `price_per_hour` is what it adds to the bill
    billed: BilledKind | None = None  # set if there is a contract

    @cached_property
    def name(self) -> str:
        if self.node is not None:
            return self.node.name
        assert self.claim is not None
        return self.claim.name

    @property
    def labels(self) -> Labels:
        """The labels of the node; empty without a node."""
        return self.node.labels if self.node is not None else NO_LABELS

    @cached_property
    def pool(self) -> str:
        from_node = self.node.pool if self.node is not None else ""
        return from_node or (self.claim.pool if self.claim is not None else "")

    @cached_property
    def is_initialized(self) -> bool:
        return self.node is not None and self.node.is_initialized

    @cached_property
    def is_leaving(self) -> bool:
        claim, node = self.claim, self.node
        return (claim is not None and claim.is_deleting) or (node is not None and node.is_deleting)

    @property
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
        claim, labels = self.claim, self.labels
        annotations = self.node.annotations if self.node is not None else NO_LABELS
        return NodeTraits(
            pool_label=self.node.pool if self.node is not None else "",
            managed=claim is not None,
            initialized=self.is_initialized,
            deleting=self.is_leaving,
            do_not_disrupt=annotations.get(DO_NOT_DISRUPT) == "true",
            instance_type=labels.get(INSTANCE_TYPE, ""),
            capacity_type=labels.get(CAPACITY_TYPE, ""),
            zone=labels.get(ZONE, ""),
            consolidatable=claim is not None and claim.is_consolidatable,
            drifted=claim is not None and claim.is_drifted,
            has_grace_period=claim is not None and claim.has_grace_period,
            blocked=self.blocked,
            reserved=self.reserved,
        )

    @cached_property
    def digest(self) -> bytes:
        """A digest of everything that plans depend on, for the fingerprint of the cluster."""
        node, claim = self.node, self.claim
        said = (
            self.name,
            claim.uid if claim is not None else "",
            self.is_leaving,
            self.is_initialized,
            self.price_per_hour,
            (self.blocked, self.reserved, self.ailment),
            node.annotations.get(DO_NOT_DISRUPT) if node is not None else None,
            (node.taints, node.is_unschedulable, node.provider_id, node.labels) if node is not None else None,
        )
        return blake2b(_ENCODER.encode(said), digest_size=12).digest()

    @cached_property
    def ailment(self) -> str:
        """The condition, with its status, for which node repair may remove the node; empty: none."""
        for condition in self.node.conditions if self.node is not None else ():
            if condition.status in _REPAIRED.get(condition.type, ()):
                return f"{condition.type} is {condition.status}"
        return ""

    @property
    def initialized_at(self) -> float | None:
        """When its claim was initialized; None before that."""
        return self.claim.initialized_at if self.claim is not None else None

    @property
    def last_pod_event_at(self) -> float:
        """The time that Karpenter recorded, possibly late; 0 if none."""
        return self.claim.last_pod_event_at if self.claim is not None else 0.0

    @property
    def is_counted(self) -> bool:
        """Whether budgets count it: an initialized node of a pool that is not being terminated."""
        claim = self.claim
        return claim is not None and bool(self.pool) and self.is_initialized and not claim.is_terminating

    @property
    def is_down(self) -> bool:
        return self.is_leaving or self.node is None or not self.node.is_ready
