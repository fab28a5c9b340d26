"""The parts of a Node and of a NodeClaim that are kept.

A cluster has thousands of both, and whole objects are many times larger. Amounts and conditions are the same
on most nodes, so they are stored once (`SharedValues`). The spec of a claim is kept until its node is
initialized: afterwards the node has the facts.
"""

from collections.abc import Hashable, Sequence
from typing import TypeVar

import msgspec

from karpool.model.devices.inventory import REGISTERS
from karpool.model.karpenter.objects import (
    DO_NOT_DISRUPT,
    INITIALIZED,
    NODEPOOL,
    NodeClaim,
    NodeClaimSpec,
)
from karpool.model.kubernetes.meta import NO_LABELS, Condition, Labels
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.kubernetes.times import moment
from karpool.model.taints import Taint

_NO_AMOUNTS: QuantityMap = {}
_OWN_DOMAIN = "karpool.dev/"
# A cluster has some hundred kinds of machines; above this number the table is cleared.
_SHARED_MAX = 10_000
_Value = TypeVar("_Value", bound=Hashable)


class NodeCondition(msgspec.Struct, frozen=True, gc=False):
    """A condition without its times, so that a heartbeat is not a change."""

    type: str
    status: str
    message: str


class SharedValues:
    """Keeps one object for all equal values."""

    def __init__(self) -> None:
        self._amounts: dict[frozenset[tuple[str, str | int | float]], QuantityMap] = {}
        self._values: dict[Hashable, Hashable] = {}

    def amounts(self, quantities: QuantityMap | None) -> QuantityMap:
        if not quantities:
            return _NO_AMOUNTS
        if len(self._amounts) > _SHARED_MAX:
            self._amounts.clear()
        return self._amounts.setdefault(frozenset(quantities.items()), quantities)

    def value(self, content: _Value) -> _Value:
        if len(self._values) > _SHARED_MAX:
            self._values.clear()
        return self._values.setdefault(content, content)  # type: ignore[return-value]


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """The kept parts of a Node.

    `annotations` are those about disruption, price and devices; `owners` are the claims in its owner
    references. Amounts are kept as written, because the code that parses them reports errors.
    """

    name: str
    uid: str = ""
    labels: Labels = NO_LABELS
    annotations: Labels = NO_LABELS
    taints: tuple[Taint, ...] = ()
    provider_id: str = ""
    owners: tuple[str, ...] = ()
    allocatable: QuantityMap = _NO_AMOUNTS
    capacity: QuantityMap = _NO_AMOUNTS
    conditions: tuple[NodeCondition, ...] = ()
    is_ready: bool = False
    is_unschedulable: bool = False
    is_deleting: bool = False

    @property
    def pool(self) -> str:
        return self.labels.get(NODEPOOL, "")

    @property
    def is_initialized(self) -> bool:
        return self.labels.get(INITIALIZED) == "true"


class ClaimFacts(msgspec.Struct, frozen=True, gc=False):
    """The kept parts of a NodeClaim. `labels` and `spec` are kept until the claim is initialized."""

    name: str
    uid: str = ""
    pool: str = ""
    provider_id: str = ""
    node_name: str = ""
    created: float | None = None
    allocatable: QuantityMap = _NO_AMOUNTS
    capacity: QuantityMap = _NO_AMOUNTS
    expire_after: str = ""
    has_grace_period: bool = False
    is_launched: bool = False
    is_registered: bool = False
    initialized_at: float | None = None  # 0 if the time is missing
    last_pod_event_at: float = 0.0  # as Karpenter recorded it, possibly late; 0 if it has not
    is_consolidatable: bool = False
    is_drifted: bool = False
    is_terminating: bool = False  # its machine is being terminated
    is_deleting: bool = False  # no new pod will be placed on its node
    labels: Labels = NO_LABELS
    spec: NodeClaimSpec | None = None

    @property
    def taints(self) -> Sequence[Taint]:
        return (self.spec.taints if self.spec is not None else None) or ()


def node_facts(node: Node, shared: SharedValues | None = None, price_annotation: str = "") -> NodeFacts:
    same = shared or SharedValues()
    meta, spec, status = node.metadata, node.spec, node.status
    annotations = {
        key: text
        for key, text in node.annotations.items()
        if key in (DO_NOT_DISRUPT, price_annotation) or _OWN_DOMAIN in key or key in REGISTERS
    }
    conditions = tuple(
        [
            NodeCondition(condition.type, condition.status, condition.message or "")
            for condition in status.conditions or ()
        ]
    )
    owners = [owner.name for owner in meta.owner_references or () if owner.kind == "NodeClaim"]
    return NodeFacts(
        node.name,
        meta.uid,
        node.labels,
        annotations or NO_LABELS,
        same.value(tuple(spec.taints or ())),
        spec.provider_id,
        tuple(owners),
        same.amounts(status.allocatable),
        same.amounts(status.capacity),
        same.value(conditions),
        node.is_ready,
        spec.unschedulable,
        meta.deletion_timestamp is not None,
    )


def claim_facts(claim: NodeClaim, shared: SharedValues | None = None) -> ClaimFacts:
    same = shared or SharedValues()
    meta, spec, status = claim.metadata, claim.spec, claim.status
    said = {condition.type: condition for condition in status.conditions or () if condition.status == "True"}
    initialized = said.get("Initialized")
    terminating = "InstanceTerminating" in said
    settled = initialized is not None
    return ClaimFacts(
        claim.name,
        meta.uid,
        same.value(claim.pool_name),
        status.provider_id,
        status.node_name,
        moment(meta.creation_timestamp),
        same.amounts(status.allocatable),
        same.amounts(status.capacity),
        same.value(spec.expire_after or ""),
        spec.termination_grace_period is not None,
        "Launched" in said,
        "Registered" in said,
        _since(initialized),
        moment(status.last_pod_event_time) or 0.0,
        "Consolidatable" in said,
        "Drifted" in said,
        terminating,
        terminating or meta.deletion_timestamp is not None,
        NO_LABELS if settled else claim.labels,
        None if settled else spec,
    )


def _since(state: Condition | None) -> float | None:
    return None if state is None else moment(state.last_transition_time) or 0.0
