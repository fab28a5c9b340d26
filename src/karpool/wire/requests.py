"""What an estimator is asked, as plain values.

Whatever generation of client a request came from, it looks like this; a decoder
(`server_protocol`), a manifest or a test makes these, and plugins read nothing else. Requests
and constraints are compiled once, into a `PodShape`; text that cannot be
understood raises `Invalid` naming the field.
"""

from dataclasses import dataclass

from karpool.model.karmada.replica_requirements import (
    NO_SHAPE,
    Component,
    ReplicaNodeClaim,
    ReplicaRequirements,
    requirements,
)
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.wire.proto import explain_pb2, room_pb2, rooms_pb2, service_pb2, summary_pb2

__all__ = [
    "ArrivedReplicas",
    "AssumedOwner",
    "AssumedWorkload",
    "Component",
    "ComponentSetsRequest",
    "EstimateRequest",
    "ReplicaNodeClaim",
    "ReplicaRequirements",
    "ReplicasRequest",
    "RoomParts",
    "UnschedulableRequest",
    "WorkloadReference",
    "requirements",
]


@dataclass(frozen=True, slots=True)
class AssumedOwner:
    """An object whose pods, found by their owners, are those of an assumed workload.

    `desired`: how many replicas of each component shall run in the end; empty: as many as are assumed.
    """

    api_version: str
    kind: str
    name: str
    desired: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AssumedWorkload:
    """Placed, and not known to run yet. With `workload`, pods that are on nodes already are not deducted."""

    namespace: str
    components: tuple[Component, ...]
    workload: AssumedOwner | None = None
    waiting: int = 0  # of these, pods that are there and have no node


@dataclass(frozen=True, slots=True)
class ArrivedReplicas:
    """What there is of an assumed workload: replicas on a node, of each component, and those without one.

    `bound` is empty when nobody can tell whose pods are meant.
    """

    bound: tuple[int, ...] = ()
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class RoomParts:
    """What a number is made of: room on nodes that are there, and the rest after a scale-up.

    `is_unlimited`: some of the rest comes from pools without limits. The price is that of one replica of
    the rest; None: not known.
    """

    existing: int
    is_unlimited: bool = False
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicasRequest:
    """How many replicas fit? `requirements` None is not the same as empty ones: see the quota plugin."""

    cluster: str
    requirements: ReplicaRequirements | None = None
    assumed: tuple[AssumedWorkload, ...] = ()
    wants_parts: bool = False

    @property
    def shape(self) -> PodShape:
        return self.requirements.shape if self.requirements else NO_SHAPE


@dataclass(frozen=True, slots=True)
class ComponentSetsRequest:
    """How many complete sets of these components fit?"""

    cluster: str
    components: tuple[Component, ...] = ()
    namespace: str = ""
    assumed: tuple[AssumedWorkload, ...] = ()
    wants_parts: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadReference:
    api_version: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class UnschedulableRequest:
    """How many replicas of a workload have been without a node for longer than the threshold?"""

    cluster: str
    resource: WorkloadReference | None = None
    threshold_ns: int = 0


EstimateRequest = ReplicasRequest | ComponentSetsRequest

# Names of the gRPC services, as they are on the wire.
ESTIMATOR: str = service_pb2.DESCRIPTOR.services_by_name["Estimator"].full_name
ROOM_WATCHER: str = room_pb2.DESCRIPTOR.services_by_name["RoomWatcher"].full_name
ROOMS: str = rooms_pb2.DESCRIPTOR.services_by_name["Rooms"].full_name
EXPLAINER: str = explain_pb2.DESCRIPTOR.services_by_name["Explainer"].full_name
SUMMARIZER: str = summary_pb2.DESCRIPTOR.services_by_name["Summarizer"].full_name
