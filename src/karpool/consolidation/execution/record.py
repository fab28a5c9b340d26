"""The durable record of one move: what was decided, how far it got, and what came of it.

One ConfigMap per move, named after the move, which is the same for the same nodes. It is
written before anything is done, and over exactly the version that was read. While a
move is under way it carries the label `active`; after that it is an entry of the ledger.
A record that somebody has edited is checked like any input.
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
RECORD = f"{DOMAIN}/record"  # label; its value says of what
ACTIVE = f"{DOMAIN}/active"  # label
PHASE = f"{DOMAIN}/phase"
SCORE = f"{DOMAIN}/score"
SAVINGS = f"{DOMAIN}/savings-per-hour"
NODES = f"{DOMAIN}/nodes"
MANAGED_BY = "app.kubernetes.io/managed-by"
MOVE = "move"
KEY = "record"  # in the ConfigMap's data
PREFIX = "karpool-move-"
SIZE_LIMIT = 900_000  # bytes; a ConfigMap may have 1 MiB
_NODES_SHOWN = 20
Object = dict[str, Any]


class MovePhase(StrEnum):
    WAITING = "Waiting"  # decided; nothing is done until the quiet time is over
    ASKING = "Asking"  # new nodes are asked for
    CORDONING = "Cordoning"  # nothing may come to the nodes any more; the last look
    DELETING = "Deleting"  # from here on there is no way back for nodes whose claim is deleted
    SETTLING = "Settling"  # the nodes are gone; what came of it is measured
    ROLLING_BACK = "RollingBack"
    DONE = "Done"
    ROLLED_BACK = "RolledBack"
    REJECTED = "Rejected"  # before anything was done

    @property
    def is_over(self) -> bool:
        return self in OVER

    @property
    def takes_nodes(self) -> bool:
        """Whether its nodes count as going: against budgets, and for what is planned next."""
        return self in _TAKING


OVER = frozenset((MovePhase.DONE, MovePhase.ROLLED_BACK, MovePhase.REJECTED))
_TAKING = frozenset(
    (MovePhase.WAITING, MovePhase.ASKING, MovePhase.CORDONING, MovePhase.DELETING, MovePhase.ROLLING_BACK)
)


@dataclass(frozen=True, slots=True)
class PlaceholderRequest:
    """What the placeholder of one new node asks for. Without zones, any that the pool allows; without
    types, any that was planned.

    `labels` are those that its pods ask of their node, `apart` the pods that they share none with."""

    resources: Mapping[str, int] = field(hash=False)
    tolerations: tuple[Toleration, ...] = ()
    zones: tuple[str, ...] = ()
    labels: Mapping[str, ValueSet] = field(default_factory=dict, hash=False)
    apart: tuple[AffinityTerm, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanBound:
    """What a certificate said at that time: its plan saved so much per hour, and none could save more than
    that."""

    planned_per_hour: float
    possible_per_hour: float
    at: float  # seconds since the epoch

    @property
    def share(self) -> float | None:
        """What was planned of what was possible; None: nothing was."""
        return self.planned_per_hour / self.possible_per_hour if self.possible_per_hour > 0 else None


def bound_of(plan: ConsolidationPlan) -> PlanBound | None:
    """None: the plan has no certificate, or nobody could tell."""
    certificate = plan.certificate
    if certificate is None or certificate.possible_per_hour is None:
        return None
    return PlanBound(plan.savings_per_hour, certificate.possible_per_hour, plan.made_at)


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """`uid` and `version` are the ConfigMap's, empty before it exists; times are seconds since the epoch.

    `attempt` counts how often the same move was begun. `owners` are the controllers of the pods
    that it disturbs, by uid, with their number. `bound` is the newest certificate when it was decided.
    """

    move: Move
    phase: MovePhase
    created: float
    since: float  # the phase
    attempt: int = 1
    wanted: tuple[PlaceholderRequest, ...] = ()  # one for each new node
    arrived: tuple[str, ...] = ()  # the new nodes, when they are there
    arrived_price: float | None = None  # per hour, together
    unused: tuple[str, ...] = ()  # NodeClaims that came for its placeholders, and none of them is there
    asked_at: float | None = None  # when the phase Asking began
    kept: tuple[str, ...] = ()  # nodes that stay after all
    owners: Mapping[str, int] = field(default_factory=dict, hash=False)
    disturbed: int = 0  # pods
    redisturbed: int = 0  # of them, those that an earlier move disturbed shortly before
    deleted_at: float | None = None  # when the phase Deleting began
    gone_at: float | None = None
    ended: float | None = None
    realised: float | None = None  # saving per hour; None: not measured, or a price is not known
    extra_nodes: tuple[str, ...] = ()  # that had to be bought for its pods although none was planned
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
        """Nodes that it takes, or has taken."""
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
    """Of all namespaces, where none is named."""
    labels = f"{RECORD}={MOVE}" + (f",{ACTIVE}=true" if active else "")
    return ListOptions(namespace=namespace or None, label_selector=labels)


def to_object(record: MoveRecord, namespace: str) -> Object:
    """Raises Invalid when it is too large to be stored."""
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
