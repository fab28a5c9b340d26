"""Claims, classes and allocations as the allocator sees them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from karpool.model.dra.device import DeviceId
from karpool.model.kubernetes.meta import OwnerReference
from karpool.model.requirements import NodeSelector, NodeTerm
from karpool.model.taints import Toleration

EXACT_COUNT, ALL = "ExactCount", "All"
Opaque = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request, or one alternative of a request that has several (`parent`)."""

    name: str
    device_class: str
    mode: str = EXACT_COUNT
    count: int = 1
    admin_access: bool | None = None
    selectors: tuple[str | None, ...] = ()  # CEL; None: a kind that this version does not know
    tolerations: tuple[Toleration, ...] = ()
    capacity: tuple[tuple[str, int], ...] | None = None
    parent: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.parent}/{self.name}" if self.parent else self.name


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """`alternatives` are tried in order; `prioritized` if there may be more than one."""

    name: str
    alternatives: tuple[DeviceRequest, ...]
    prioritized: bool = False


@dataclass(frozen=True, slots=True)
class AttributeConstraint:
    """All devices have the same value, or all have different ones. Without `requests`: in the whole claim."""

    attribute: str = ""
    distinct: bool = False
    requests: frozenset[str] = frozenset()

    def concerns(self, request: DeviceRequest) -> bool:
        return (
            not self.requests
            or (request.parent or request.name) in self.requests
            or (bool(request.parent) and request.full_name in self.requests)
        )


@dataclass(frozen=True, slots=True)
class ClaimConfig:
    """Configuration for the driver; `opaque` is passed on unchanged."""

    requests: tuple[str, ...]
    opaque: Opaque = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    requests: tuple[ClaimRequest, ...] = ()
    constraints: tuple[AttributeConstraint, ...] = ()
    config: tuple[ClaimConfig, ...] = ()

    def all_requests(self) -> Iterator[DeviceRequest]:
        for request in self.requests:
            yield from request.alternatives


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of a claim. `share` is the ID of a part of it, and `consumed` its size."""

    request: str
    id: DeviceId
    admin_access: bool = False
    share: str | None = None
    consumed: tuple[tuple[str, int], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of a claim. `node_terms` say where it can be used; None: everywhere."""

    devices: tuple[AllocatedDevice, ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    selector: NodeSelector | None = field(default=None, compare=False)  # the terms as written
    config: tuple[tuple[str, tuple[str, ...], Opaque], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class DraClaim:
    namespace: str
    name: str
    spec: ClaimSpec
    uid: str = ""
    allocation: Allocation | None = None
    deleting: bool = False
    reserved_for: tuple[tuple[str, str], ...] = ()  # resource and uid
    owners: tuple[OwnerReference, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class DraClass:
    name: str
    selectors: tuple[str | None, ...] = ()
    config: tuple[ClaimConfig, ...] = ()
    extended_resource: str | None = None
    created: str = ""
