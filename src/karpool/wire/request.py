"""What an estimator is asked, as plain values.

Whatever generation of client a request came from, it looks like this; a decoder
(`serving`), a manifest or a test makes these, and plugins read nothing else. Requests
and constraints are compiled once, into a `PodShape`; text that cannot be
understood raises `Invalid` naming the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.requirements import NodeSelector, compile_terms
from karpool.model.shape import PodShape, positive
from karpool.model.taints import Toleration
from karpool.packing.first_fit import Component as Group

NO_SHAPE = PodShape()


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """Where pods may run. `node_affinity` None: anywhere; without terms: nowhere."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: NodeSelector | None = None
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaRequirements:
    """What one replica asks for; of components too, which have no namespace of their own."""

    shape: PodShape = NO_SHAPE
    namespace: str = ""
    priority_class_name: str = ""
    resource_request: Mapping[str, str] = field(default_factory=dict)  # as it was written
    node_claim: NodeClaim | None = None


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    replicas: int
    requirements: ReplicaRequirements | None = None

    @property
    def group(self) -> Group:
        """The same, for the packing kernel."""
        return Group(self.requirements.shape if self.requirements else NO_SHAPE, self.replicas)


@dataclass(frozen=True, slots=True)
class Workload:
    """An object whose pods, found by their owners, are those of an assumed workload."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class AssumedWorkload:
    """Placed, and not known to run yet. With `workload`, pods that are on nodes already are not deducted."""

    namespace: str
    components: tuple[Component, ...]
    workload: Workload | None = None


@dataclass(frozen=True, slots=True)
class ReplicasRequest:
    """How many replicas fit? `requirements` None is not the same as empty ones: see the quota plugin."""

    cluster: str
    requirements: ReplicaRequirements | None = None
    assumed: tuple[AssumedWorkload, ...] = ()

    @property
    def shape(self) -> PodShape:
        return self.requirements.shape if self.requirements else NO_SHAPE

    @property
    def namespace(self) -> str:
        return self.requirements.namespace if self.requirements else ""


@dataclass(frozen=True, slots=True)
class ComponentSetsRequest:
    """How many complete sets of these components fit?"""

    cluster: str
    components: tuple[Component, ...] = ()
    namespace: str = ""
    assumed: tuple[AssumedWorkload, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectReference:
    api_version: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class UnschedulableRequest:
    """How many replicas of a workload have been without a node for longer than the threshold?"""

    cluster: str
    resource: ObjectReference | None = None
    threshold_ns: int = 0


EstimateRequest = ReplicasRequest | ComponentSetsRequest


def requirements(
    resource_request: Mapping[str, str] | None = None,
    node_claim: NodeClaim | None = None,
    namespace: str = "",
    priority_class_name: str = "",
) -> ReplicaRequirements:
    """Compile what one replica asks for; raises Invalid naming the resource."""
    wanted = resource_request or {}
    try:
        # All of it is parsed, also what no node counts: a typo there is an error, as upstream.
        amounts = resources.parse_all(wanted)
    except Invalid as error:
        raise error.at("resourceRequest") from None
    counted = {
        name: units
        for name, units in amounts.items()
        if name in resources.NATIVE or resources.is_scalar(name)
    }
    claim = node_claim or _ANYWHERE
    shape = PodShape(
        requests=positive(counted),
        node_selector=tuple(sorted(claim.node_selector.items())),
        node_terms=compile_terms(claim.node_affinity),
        tolerations=claim.tolerations,
    )
    return ReplicaRequirements(shape, namespace, priority_class_name, wanted, node_claim)


_ANYWHERE = NodeClaim()
