"""A request for nodes as a value: who needs them, what must fit, and which nodes are acceptable.

A `NodeRequest` is one attempt (`epoch`) of one request. Each of its units must fit on one node; an autoscaler
may put several units on a node. The ladder lists what to try, in order. The caller chooses the current rung
(`candidates`), so that it can be recorded before anything is created. All objects of a request are named
after (request, epoch, index) alone, so that requests are idempotent.
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

UNITS_MAX = 1000  # per request; more than any round of a scale-up plans


class RequestPurpose(StrEnum):
    """Why a node is requested; the value of the label `trigger-type`."""

    SCALE_UP = "gpu-scaling"
    REPLACEMENT = "replacement"


@dataclass(frozen=True, slots=True)
class NodeUnit:
    """Resources that must fit together on one node: milli-CPU, bytes, counts; sorted by name."""

    resources: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return show(dict(self.resources)) or "nothing"


def unit(resources: Mapping[str, int]) -> NodeUnit:
    """Return a unit without zero amounts. Raises Invalid for a negative amount."""
    for name, amount in resources.items():
        if amount < 0:
            raise Invalid(name, amount, "must not be negative")
    return NodeUnit(tuple(sorted((name, amount) for name, amount in resources.items() if amount)))


@dataclass(frozen=True, slots=True)
class NodeCandidate:
    """A set of node constraints to try. An empty field is no constraint.

    `price` is that of the cheapest offering in USD per hour, None if it is unknown. `tolerations` are those
    that the taints of the pools require.
    """

    pools: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    capacity_types: tuple[str, ...] = ()
    requirements: Requirements = field(default_factory=dict, hash=False)  # besides the fields above
    tolerations: tuple[Toleration, ...] = ()
    price: float | None = None
    apart: tuple[AffinityTerm, ...] = ()  # pods that must not share the node

    @property
    def constraints(self) -> Requirements:
        """All fields as requirements on node labels."""
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
        """Equal for equal constraints in any order; used in failure memories and metrics."""
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
    """One attempt of a request. `request` names the durable record and is a valid label value.

    `demand` lists the pending pods (UIDs) and `about` describes the request; both are informational.
    `deadline` is the end of the attempt, in seconds since the epoch. `avoid` are labels of pods, in any
    namespace, that a unit must not share a node with, because schedulers do not see their use of devices.
    """

    request: str
    epoch: int
    units: tuple[NodeUnit, ...]
    candidates: tuple[NodeCandidate, ...]
    purpose: RequestPurpose = RequestPurpose.SCALE_UP
    pool: str = ""  # the GPUPool, or the NodePool of a replacement
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
        """Return the requirements of one rung of the ladder. Raises Invalid if they exclude every node."""
        constraints = candidate.constraints
        if (key := conflict(self.requirements, constraints, frozenset(constraints))) is not None:
            reason = f"the candidate wants {constraints[key]}: they have no value in common"
            raise Invalid(f"requirements.{key}", str(self.requirements[key]), reason)
        return combined(self.requirements, constraints)
