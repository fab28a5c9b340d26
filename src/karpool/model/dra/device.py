"""Devices and pools as the allocator sees them: read, checked and hashable. Amounts are exact, in nanos."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpool.model.kubernetes.meta import Labels
from karpool.model.requirements import NodeSelector, NodeTerm
from karpool.model.taints import Taint

_NAME_FIELD = "metadata.name"


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class AttributeValue:
    """A value of an attribute. `kind` is int, bool, string or version; empty if it is unknown."""

    kind: str = ""
    values: tuple[int | bool | str, ...] = ()
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class CapacityPolicy:
    """The amounts of a capacity that may be allocated: a range, or one of `values`; `default` if unset."""

    default: int | None = None
    has_range: bool = False
    least: int | None = None
    most: int | None = None
    step: int | None = None
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DraCapacity:
    nanos: int
    policy: CapacityPolicy | None = None


@dataclass(frozen=True, slots=True)
class CounterUse:
    """What a device uses of one counter set of its pool while it is allocated."""

    counter_set: str
    counters: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a device can be used; nowhere if nothing is set."""

    node: str | None = None
    all_nodes: bool = False
    terms: tuple[NodeTerm, ...] | None = None
    unreadable: bool = False  # a selector that cannot be parsed
    selector: NodeSelector | None = field(default=None, compare=False)  # `terms` as written

    @property
    def is_set(self) -> bool:
        return bool(self.node) or self.all_nodes or self.terms is not None

    def serves(self, name: str, labels: Labels) -> bool:
        if self.node:
            return self.node == name
        if self.all_nodes:
            return True
        return any(_matches(term, name, labels) for term in self.terms or ())


def _matches(term: NodeTerm, name: str, labels: Labels) -> bool:
    return all(value_set.admits(labels.get(key)) for key, value_set in term.labels) and all(
        value_set.admits(name if key == _NAME_FIELD else "") for key, value_set in term.fields
    )


def selects_node(terms: tuple[NodeTerm, ...] | None, name: str, labels: Labels) -> bool:
    """Whether an allocated claim can be used from a node; None: from all nodes."""
    return terms is None or any(_matches(term, name, labels) for term in terms)


@dataclass(frozen=True, slots=True)
class DraDevice:
    id: DeviceId
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    capacity: tuple[tuple[str, DraCapacity], ...] = ()
    shareable: bool = False
    counters: tuple[CounterUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    place: NodePlace | None = None  # set if the slice selects nodes per device
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None

    def attribute(self, name: str) -> AttributeValue | None:
        """Return an attribute by its full name, or by the bare name in the domain of the driver."""
        domain, _, identifier = name.partition("/")
        bare = None
        for own, value in self.attributes:
            if own == name:
                return value
            if own == identifier and domain == self.id.driver:
                bare = value
        return bare


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """Devices, or counters, of one driver; part of one generation of a pool."""

    name: str
    driver: str
    pool: str
    generation: int
    pool_slices: int
    place: NodePlace | None = None
    per_device: bool = False
    devices: tuple[DraDevice, ...] = ()
    counter_sets: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()


PoolKey = tuple[str, str]  # driver, pool
Counters = Mapping[str, Mapping[str, int]]  # by counter set and counter
