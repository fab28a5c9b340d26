"""What one replica requests, in bindings and estimator requests.

Requests and constraints are compiled once, into a `PodShape`; unreadable text raises `Invalid`, which names
the field. The original is kept beside it, to be sent on unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod_shape import PodShape, positive
from karpool.model.requirements import NodeSelector, node_terms_of
from karpool.model.taints import Toleration

NO_SHAPE = PodShape()


@dataclass(frozen=True, slots=True)
class ReplicaNodeClaim:
    """Where pods may run. `node_affinity` None: anywhere; without terms: nowhere."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: NodeSelector | None = None
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaRequirements:
    """What one replica requests; also for components, which have no namespace of their own."""

    shape: PodShape = NO_SHAPE
    namespace: str = ""
    priority_class_name: str = ""
    resource_request: Mapping[str, str] = field(default_factory=dict)  # as it was written
    node_claim: ReplicaNodeClaim | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """One pod template of a workload that has several."""

    name: str
    replicas: int
    requirements: ReplicaRequirements | None = None

    @property
    def shape(self) -> PodShape:
        return self.requirements.shape if self.requirements else NO_SHAPE


def requirements(
    resource_request: Mapping[str, str] | None = None,
    node_claim: ReplicaNodeClaim | None = None,
    namespace: str = "",
    priority_class_name: str = "",
) -> ReplicaRequirements:
    """Compile what one replica requests; raises Invalid, which names the resource."""
    request = resource_request or {}
    try:
        # Everything is parsed, even resources that nodes do not count: a typo is an error, as upstream.
        amounts = resources.parse_all(request)
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
        node_terms=node_terms_of(claim.node_affinity),
        tolerations=claim.tolerations,
    )
    return ReplicaRequirements(shape, namespace, priority_class_name, request, node_claim)


_ANYWHERE = ReplicaNodeClaim()
