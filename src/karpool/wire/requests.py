"""Questions to an estimator, as plain values.

Requests of every client version become these values. A decoder (`server_protocol`), a manifest or a test
creates them, and plugins read nothing else. Requests and constraints are compiled once, into a `PodShape`;
text that cannot be parsed raises `Invalid` naming the field.
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
    """The object that owns the pods of an assumed workload.

    `desired` is the final number of replicas of each component; empty: as many as are assumed.
    """

    api_version: str
    kind: str
    name: str
    desired: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AssumedWorkload:
    """A placed workload that may not run yet.

    With `workload`, replicas that already have a node are not counted twice.
    """

    namespace: str
    components: tuple[Component, ...]
    workload: AssumedOwner | None = None
    waiting: int = 0  # pods of these replicas that exist and have no node


@dataclass(frozen=True, slots=True)
class ArrivedReplicas:
    """Existing pods of an assumed workload: replicas with a node, by component, and pods without one.

    `bound` is empty if the owner of the pods is not known.
    """

    bound: tuple[int, ...] = ()
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class RoomParts:
    """The parts of an estimate: room on existing nodes, and the rest after a scale-up.

    `is_unlimited`: some of the rest comes from pools without limits. The price is for one replica of the
    rest; None if it is not known.
    """

    existing: int
    is_unlimited: bool = False
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicasRequest:
    """Asks how many replicas fit. `requirements` None differs from empty ones: see the quota plugin."""

    cluster: str
    requirements: ReplicaRequirements | None = None
    assumed: tuple[AssumedWorkload, ...] = ()
    wants_parts: bool = False

    @property
    def namespace(self) -> str:
        """Return the namespace for plugins; empty without requirements."""
        return self.requirements.namespace if self.requirements else ""

    @property
    def shape(self) -> PodShape:
        return self.requirements.shape if self.requirements else NO_SHAPE


@dataclass(frozen=True, slots=True)
class ComponentSetsRequest:
    """Asks how many complete sets of these components fit."""

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
    """Asks how many replicas of a workload have been without a node for longer than the threshold."""

    cluster: str
    resource: WorkloadReference | None = None
    threshold_ns: int = 0


EstimateRequest = ReplicasRequest | ComponentSetsRequest

# Names of the gRPC services on the wire.
ESTIMATOR: str = service_pb2.DESCRIPTOR.services_by_name["Estimator"].full_name
ROOM_WATCHER: str = room_pb2.DESCRIPTOR.services_by_name["RoomWatcher"].full_name
ROOMS: str = rooms_pb2.DESCRIPTOR.services_by_name["Rooms"].full_name
EXPLAINER: str = explain_pb2.DESCRIPTOR.services_by_name["Explainer"].full_name
SUMMARIZER: str = summary_pb2.DESCRIPTOR.services_by_name["Summarizer"].full_name
