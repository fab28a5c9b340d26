"""The durable record of one move: the decision, its phase, and the result.

Each move has one ConfigMap, named after the move's id, which is the same for the same nodes. It is written
before anything is done, and updated with the resourceVersion that was read. An active move carries the label
`active`; afterwards the record is an entry of the ledger. A record is validated like any other input, because
it may have been edited.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from karpool.consolidation.planning.plan import ConsolidationPlan, Move
from karpool.consolidation.planning.plan_file import finite
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ListOptions
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod_shape import AffinityTerm
from karpool.model.requirements import ValueSet
from karpool.model.taints import Toleration

DOMAIN = "consolidation.karpool.dev"
RECORD = f"{DOMAIN}/record"  # label; its value is the type of record
ACTIVE = f"{DOMAIN}/active"  # label
PHASE = f"{DOMAIN}/phase"
SCORE = f"{DOMAIN}/score"
SAVINGS = f"{DOMAIN}/savings-per-hour"
NODES = f"{DOMAIN}/nodes"
MANAGED_BY = "app.kubernetes.io/managed-by"
MOVE = "move"
KEY = "record"  # key in the ConfigMap's data
PREFIX = "karpool-move-"
SIZE_LIMIT = 900_000  # bytes; a ConfigMap may have 1 MiB
_NODES_SHOWN = 20
Object = dict[str, Any]


class MovePhase(StrEnum):
    WAITING = "Waiting"  # decided; nothing is done until the quiet time is over
    ASKING = "Asking"  # new nodes are requested
    CORDONING = "Cordoning"  # no new pods on the nodes; last validation
    DELETING = "Deleting"  # irreversible for nodes whose claim is deleted
    SETTLING = "Settling"  # the nodes are gone; the saving is measured
    ROLLING_BACK = "RollingBack"
    DONE = "Done"
    ROLLED_BACK = "RolledBack"
    REJECTED = "Rejected"  # before anything was done

    @property
    def is_over(self) -> bool:
        return self in OVER

    @property
    def takes_nodes(self) -> bool:
        """Whether its nodes count as leaving, for budgets and for later plans."""
        return self in _TAKING


OVER = frozenset((MovePhase.DONE, MovePhase.ROLLED_BACK, MovePhase.REJECTED))
_TAKING = frozenset(
    (MovePhase.WAITING, MovePhase.ASKING, MovePhase.CORDONING, MovePhase.DELETING, MovePhase.ROLLING_BACK)
)


@dataclass(frozen=True, slots=True)
class PlaceholderRequest:
    """The request of one new node's placeholder. Without zones or types, any planned one will do.

    `labels` are those that the pods require of their node, `apart` the pods that they share no node with.
    """

    resources: Mapping[str, int] = field(hash=False)
    tolerations: tuple[Toleration, ...] = ()
    zones: tuple[str, ...] = ()
    labels: Mapping[str, ValueSet] = field(default_factory=dict, hash=False)
    apart: tuple[AffinityTerm, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanBound:
    """The result of a certificate: what its plan saved per hour, and the upper bound of any plan."""

    planned_per_hour: float
    possible_per_hour: float
    at: float  # seconds since the epoch

    @property
    def share(self) -> float | None:
        """The planned share of the possible saving; None if nothing was possible."""
        return self.planned_per_hour / self.possible_per_hour if self.possible_per_hour > 0 else None


def bound_of(plan: ConsolidationPlan) -> PlanBound | None:
    """None if the plan has no certificate or the bound is unknown."""
    certificate = plan.certificate
    if certificate is None or certificate.possible_per_hour is None:
        return None
    return PlanBound(plan.savings_per_hour, certificate.possible_per_hour, plan.made_at)


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """`uid` and `version` are the ConfigMap's, empty before it exists; times are seconds since the epoch.

    `attempt` counts how often the same move was begun. `owners` are the controllers of the disturbed pods, by
    uid, with the number of pods. `bound` is the latest certificate at the time of the decision.
    """

    move: Move
    phase: MovePhase
    created: float
    since: float  # start of the phase
    attempt: int = 1
    wanted: tuple[PlaceholderRequest, ...] = ()  # one for each new node
    arrived: tuple[str, ...] = ()  # the new nodes, once they are ready
    arrived_price: float | None = None  # per hour, of all new nodes
    unused: tuple[str, ...] = ()  # NodeClaims launched for its placeholders that hold none of them
    asked_at: float | None = None  # start of the phase Asking
    kept: tuple[str, ...] = ()  # nodes that were not removed
    owners: Mapping[str, int] = field(default_factory=dict, hash=False)
    disturbed: int = 0  # number of pods
    redisturbed: int = 0  # pods that an earlier move disturbed shortly before
    deleted_at: float | None = None  # start of the phase Deleting
    gone_at: float | None = None
    ended: float | None = None
    realised: float | None = None  # saving per hour; None: not measured, or a price is unknown
    extra_nodes: tuple[str, ...] = ()  # launched for its pods without being planned
    reason: str = ""  # code
    message: str = ""
    bound: PlanBound | None = None
    uid: str = ""
    version: str = ""

    @property
    def name(self) -> str:
        return record_name(self.move)

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.move.names

    @property
    def going(self) -> tuple[str, ...]:
        """The nodes that the move removes or has removed."""
        return tuple(name for name in self.nodes if name not in self.kept)

    @property
    def replaces(self) -> bool:
        return bool(self.move.new_nodes)

    def to(
        self, phase: MovePhase, now: float, reason: str = "", message: str = "", **changes: Any
    ) -> "MoveRecord":
        if phase.is_over:
            changes["ended"] = now
        return replace(self, phase=phase, since=now, reason=str(reason), message=message[:1024], **changes)


def record_name(move: Move) -> str:
    return f"{PREFIX}{move.id}"


def selection(namespace: str, *, active: bool = False) -> ListOptions:
    """Select records; of all namespaces if none is named."""
    labels = f"{RECORD}={MOVE}" + (f",{ACTIVE}=true" if active else "")
    return ListOptions(namespace=namespace or None, label_selector=labels)


def to_object(record: MoveRecord, namespace: str) -> Object:
    """Raises Invalid if the record is too large to be stored."""
    content = finite(msgspec.to_builtins(record))
    for key in ("uid", "version"):
        del content[key]
    text = msgspec.json.encode(content).decode()
    if len(text) > SIZE_LIMIT:
        raise Invalid(record.name, len(text), f"is larger than the {SIZE_LIMIT} bytes that a record may have")
    move = record.move
    labels = {MANAGED_BY: "karpool", RECORD: MOVE, PHASE: str(record.phase)}
    if not record.phase.is_over:
        labels[ACTIVE] = "true"
    metadata: Object = {
        "name": record.name,
        "namespace": namespace,
        "labels": labels,
        "annotations": {
            SCORE: "" if move.score is None else f"{move.score:.4f}",
            SAVINGS: f"{move.savings_per_hour:.6f}",
            NODES: ",".join(move.names[:_NODES_SHOWN]),
        },
    }
    if record.uid:
        metadata |= {"uid": record.uid, "resourceVersion": record.version}
    return {"metadata": metadata, "data": {KEY: text}}


def from_object(stored: ConfigMap) -> MoveRecord:
    """Raises Invalid naming the field."""
    meta = stored.metadata
    text = (stored.data or {}).get(KEY, "")
    where = f"ConfigMap {meta.key}"
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(
            f"{where}.data.{KEY}", text[:40], f"is not a record: {error}; delete the object"
        ) from None
    try:
        record = decode(raw, MoveRecord)
    except Invalid as error:
        raise error.at(f"{where}.data.{KEY}") from None
    if record.name != meta.name:
        reason = f"belongs to {record.name}; delete the object"
        raise Invalid(f"{where}.data.{KEY}.move.id", record.move.id, reason)
    if len(record.wanted) != len(record.move.new_nodes) or not record.move.nodes:
        raise Invalid(f"{where}.data.{KEY}.move", record.move.id, "contradicts itself; delete the object")
    return replace(record, uid=meta.uid, version=meta.resource_version)
