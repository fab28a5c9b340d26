"""Asking for nodes, as a value: who wants them, what must fit, and where it may come from.

An `NodeRequest` is one attempt (`epoch`) of one request. Every unit of it is what must fit on
one node together; an autoscaler may put several units on a node. The ladder says what
to try, in order; which rung is tried now is the caller's choice (`candidates`), so that
it can be written down before anything is done. Everything made for an ask is named
after (request, epoch, index) alone: asking twice is asking once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL
from karpool.model.kubernetes.meta import OwnerReference
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.pod_shape import AffinityTerm
from karpool.model.labels import check_value
from karpool.model.requirements import Requirements, ValueSet, combined, conflict
from karpool.model.resources import show
from karpool.model.taints import Toleration
from karpool.provisioning.names import digest

UNITS_MAX = 1000  # of one ask; more than any round of a scale-up plans


class RequestPurpose(StrEnum):
    """Why a node is asked for; the value of the label `trigger-type`."""

    SCALE_UP = "gpu-scaling"
    REPLACEMENT = "replacement"


@dataclass(frozen=True, slots=True)
class NodeUnit:
    """What must fit on one node together: milli-CPU, bytes, counts; sorted by name."""

    resources: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return show(dict(self.resources)) or "nothing"


def unit(resources: Mapping[str, int]) -> NodeUnit:
    """Raises Invalid for an amount below zero; zeros are left out."""
    for name, amount in resources.items():
        if amount < 0:
            raise Invalid(name, amount, "must not be negative")
    return NodeUnit(tuple(sorted((name, amount) for name, amount in resources.items() if amount)))


@dataclass(frozen=True, slots=True)
class NodeCandidate:
    """A set of node constraints to try. An empty part leaves it open.

    `price` is that of the cheapest offering in USD per hour, None when it is not known.
    `tolerations` are those that the pools' own taints need.
    """

    pools: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    capacity_types: tuple[str, ...] = ()
    requirements: Requirements = field(default_factory=dict, hash=False)  # besides the above
    tolerations: tuple[Toleration, ...] = ()
    price: float | None = None
    apart: tuple[AffinityTerm, ...] = ()  # pods that a node must not have

    @property
    def constraints(self) -> Requirements:
        """All of it as requirements on node labels."""
        parts = (
            (NODEPOOL, self.pools),
            (INSTANCE_TYPE, self.instance_types),
            (ZONE, self.zones),
            (CAPACITY_TYPE, self.capacity_types),
        )
        return combined(
            self.requirements, {key: ValueSet(frozenset(values)) for key, values in parts if values}
        )

    @property
    def key(self) -> str:
        """The same for the same constraints, in any order; for failure memories and metrics."""
        return digest(
            "\n".join(f"{key} {_written(value_set)}" for key, value_set in sorted(self.constraints.items()))
        )

    def __str__(self) -> str:
        parts = (self.pools, self.instance_types, self.zones, self.capacity_types)
        shown = " ".join("|".join(part[:4]) + ("|..." if len(part) > 4 else "") for part in parts if part)
        more = ", ".join(f"{key} {values}" for key, values in sorted(self.requirements.items()))
        return " ".join(part for part in (shown, more) if part) or "any node"


def _written(values: ValueSet) -> str:
    listed = ",".join(sorted(values.values))
    return f"{values.complement} {listed} {values.at_least} {values.at_most}"


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """`request` names the durable record and is a label value; so are its parts in names.

    `demand` is who waits (uids), `about` what the request is in words; both only inform.
    `deadline` is when the attempt is over, in seconds since the epoch. `avoid` are labels of
    pods that a unit must not share a node with, in any namespace: those whose use of devices
    schedulers do not see.
    """

    request: str
    epoch: int
    units: tuple[NodeUnit, ...]
    candidates: tuple[NodeCandidate, ...]
    purpose: RequestPurpose = RequestPurpose.SCALE_UP
    pool: str = ""  # of devices (GPUPool), or the NodePool of a replacement
    model: str = ""  # as the vendor writes it
    about: str = ""
    demand: tuple[str, ...] = ()
    owner: OwnerReference | None = None
    requirements: Requirements = field(default_factory=dict, hash=False)
    tolerations: tuple[Toleration, ...] = ()
    avoid: Mapping[str, str] = field(default_factory=dict, hash=False)
    deadline: float | None = None

    def __post_init__(self) -> None:
        if not self.request:
            raise Invalid("request", self.request, "must not be empty: everything is named after it")
        try:
            check_value(self.request)
        except Invalid as error:
            raise Invalid("request", self.request, error.reason) from None
        if self.epoch < 0:
            raise Invalid("epoch", self.epoch, "must not be negative")
        if not 1 <= len(self.units) <= UNITS_MAX:
            raise Invalid("units", len(self.units), f"must be from 1 to {UNITS_MAX}; split the request")
        if not self.candidates:
            raise Invalid("candidates", [], "has none; there is nothing to try")

    def constraints(self, candidate: NodeCandidate) -> Requirements:
        """What a node must be like for one rung of the ladder. Raises Invalid when nothing can be."""
        constraints = candidate.constraints
        if (key := conflict(self.requirements, constraints, frozenset(constraints))) is not None:
            reason = f"the candidate wants {constraints[key]}: they have no value in common"
            raise Invalid(f"requirements.{key}", str(self.requirements[key]), reason)
        return combined(self.requirements, constraints)
