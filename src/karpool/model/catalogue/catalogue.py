"""What a provider sells: instance types, their zones, and their prices.

A catalogue belongs to one provider and region. An unknown price is None and stays None; nothing here
estimates one. Types that the catalogue does not list are learnt from live nodes: their shape, without a
price.

The file formats are in `files`.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT, NodeClaim, capacity_type_named
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import ARCH, INSTANCE_TYPE, OS, ZONE, Node
from karpool.model.requirements import Requirements, ValueSet
from karpool.model.resources import Resources

ZONE_ID = "topology.k8s.aws/zone-id"
# Clouds sell commitments for these: families on AWS and GCP, series on Azure.
FAMILY_LABELS = (
    "karpenter.k8s.aws/instance-family",
    "eks.amazonaws.com/instance-family",
    "karpenter.k8s.gcp/instance-family",
    "karpenter.azure.com/sku-series",
)


# A struct of msgspec, because a region has tens of thousands and they must load in milliseconds.
class Offering(msgspec.Struct, frozen=True, gc=False):
    """One zone and capacity type of an instance type. `available` is False while it is out of stock."""

    zone: str
    capacity_type: str
    price_per_hour: float | None
    available: bool = True

    def __post_init__(self) -> None:
        price = self.price_per_hour
        if price is not None and not (type(price) is float and 0 <= price < math.inf):
            checked_price(price)


@dataclass(frozen=True, slots=True)
class TypeGpu:
    """The GPU of a type: its model, its memory, and the share of a whole device that one unit is."""

    model: str
    memory_mib: int = 0
    partition: float = 1.0


@dataclass(frozen=True, slots=True)
class InstanceType:
    """`requirements` are the labels of its nodes: one value each, or several while the zone is open.

    A provider label that the type does not have is present as DoesNotExist.
    """

    name: str
    requirements: Requirements = field(hash=False)
    capacity: Resources = field(hash=False)
    allocatable: Resources = field(hash=False)
    offerings: tuple[Offering, ...] = ()
    gpu: TypeGpu | None = None

    def sold_as(self, offerings: Iterable[Offering]) -> "InstanceType":
        """Return the same type with other offerings; the zones and capacity types in its labels follow."""
        chosen = tuple(offerings)
        requirements = {
            **self.requirements,
            ZONE: _one_of(frozenset([offering.zone for offering in chosen])),
            CAPACITY_TYPE: _one_of(frozenset([offering.capacity_type for offering in chosen])),
        }
        return InstanceType(self.name, requirements, self.capacity, self.allocatable, chosen, self.gpu)

    def price(self, zone: str, capacity_type: str) -> float | None:
        for offering in self.offerings:
            if offering.zone == zone and offering.capacity_type == capacity_type:
                return offering.price_per_hour
        return None


@lru_cache(maxsize=1024)
def _one_of(values: frozenset[str]) -> ValueSet:
    """Return a shared value, because nearly all types of a region are sold in the same zones."""
    return ValueSet(values)


def checked_price(price: float) -> float:
    """Return the price. Raises Invalid unless it can be added and compared."""
    if not isinstance(price, int | float) or isinstance(price, bool) or not math.isfinite(price) or price < 0:
        raise Invalid("pricePerHour", price, "must be a finite number of USD per hour, 0 or more")
    return float(price)


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices of one region, by the provider's own zone IDs.

    The zone names of AWS nodes differ between accounts; the ID of a name is learnt from nodes that have both.
    On other clouds the names are the IDs, or prices do not depend on the zone.
    """

    zone_ids: tuple[str, ...]
    on_demand: Mapping[str, float | None]
    spot: Mapping[str, Mapping[str, float]]  # type, then zone id
    spot_median: Mapping[str, float | None]  # of the region; equal to the price if zones do not differ
    sold: Mapping[str, frozenset[str]] | None = None  # type to zone IDs; a missing type is sold everywhere
    retired: frozenset[str] = frozenset()

    def offerings(self, name: str, zones: Mapping[str, str | None]) -> tuple[Offering, ...]:
        """Return the offerings of a type.

        In a zone with a known ID: the price of that zone, and no offering if the type is not sold there. In
        other zones: the median over the zones of the region.
        """
        spot, median, fixed = self.spot.get(name, {}), self.spot_median.get(name), self.on_demand.get(name)
        sold = spot if self.sold is None else self.sold.get(name)
        available = name not in self.retired
        offerings: list[Offering] = []
        for zone, zone_id in zones.items():
            if zone_id is not None and sold and zone_id not in sold:
                continue
            offerings.append(Offering(zone, ON_DEMAND, fixed, available))
            if spot or median is not None:
                price = median if zone_id is None else spot.get(zone_id, None if spot else median)
                offerings.append(Offering(zone, SPOT, price, available))
        return tuple(offerings)

    def price(self, name: str, zone_id: str | None, capacity_type: str) -> float | None:
        """Return the price in a zone, whether or not the type is listed there."""
        if capacity_type == ON_DEMAND:
            return self.on_demand.get(name)
        if capacity_type != SPOT:
            return None
        spot = self.spot.get(name, {})
        return spot.get(zone_id) if zone_id is not None and spot else self.spot_median.get(name)


# Labels that come with the type, on any cloud with a Karpenter provider.
_TYPE_LABEL = re.compile(r"(karpenter\.[^/]+|eks\.amazonaws\.com)/(instance|sku)-")
# Labels with the capacity type of nodes that Karpenter did not create; EKS has its own values.
_EKS_CAPACITY_TYPE = "eks.amazonaws.com/capacityType"
_CAPACITY_TYPE_LABELS = {
    ("cloud.google.com/gke-spot", "true"): SPOT,
    ("cloud.google.com/gke-preemptible", "true"): SPOT,
    ("cloud.google.com/gke-provisioning", "spot"): SPOT,
    ("cloud.google.com/gke-provisioning", "preemptible"): SPOT,
    ("cloud.google.com/gke-provisioning", "standard"): ON_DEMAND,
    ("kubernetes.azure.com/scalesetpriority", "spot"): SPOT,
    ("kubernetes.azure.com/scalesetpriority", "regular"): ON_DEMAND,
    ("kubernetes.azure.com/priority", "spot"): SPOT,
    ("kubernetes.azure.com/priority", "regular"): ON_DEMAND,
}
# Nodes with these labels and without a spot label are on-demand: both clouds label only spot nodes.
_SILENT_ON_DEMAND = ("cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool", "agentpool")
# What follows the region in zone names. AWS also has local zones, which have their own prices.
_ZONE_ENDINGS = {"aws": re.compile(r"[a-z]"), "gcp": re.compile(r"-[a-z]"), "azure": re.compile(r"-[0-9]")}
# AKS labels nodes outside of zones with their fault domain.
_FAULT_DOMAIN = re.compile(r"[0-9]?")


class TypeTable(Mapping[str, InstanceType]):
    """Types by name, each created on demand: most questions concern a few of a thousand types."""

    def __init__(self, names: Iterable[str], make: Callable[[str], InstanceType]) -> None:
        self._make = make
        self._made: dict[str, InstanceType | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> InstanceType:
        made = self._made[name]
        if made is None:
            made = self._made[name] = self._make(name)
        return made

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def put(self, instance_type: InstanceType) -> None:
        self._made[instance_type.name] = instance_type

    def forget(self, names: Iterable[str]) -> None:
        """Create these types again on their next use."""
        for name in names:
            self._made[name] = None


class Catalogue:
    """Instance types of one provider and region by name. `version` increases with every change."""

    def __init__(
        self,
        provider: str,
        region: str,
        types: Iterable[InstanceType] | TypeTable = (),
        *,
        label_keys: frozenset[str] | None = None,
        as_of: str = "",
        prices: PriceList | None = None,
        zones: Mapping[str, str | None] | None = None,
        open_zones: bool = False,
    ) -> None:
        """`open_zones`: the zones are the usual ones, and nodes may show others of the region.

        `label_keys` are the keys that `types` constrain, if computing them from each type would be slow.
        """
        self.provider = provider
        self.region = region
        self.as_of = as_of
        self.version = 0
        self._prices = prices
        self._zones = dict(zones or {})
        self._open_zones = open_zones
        self._learnt: set[str] = set()
        self._seen: dict[str, tuple[Offering, ...]] = {}  # offerings that nodes show and the list lacks
        listed = types if isinstance(types, TypeTable) else {one.name: one for one in types}
        self._listed: Mapping[str, InstanceType] = listed
        self._listed_keys = label_keys
        self._label_keys: tuple[int, frozenset[str]] = (-1, frozenset())
        self._types = TypeTable(listed, self._sold)

    @property
    def types(self) -> Mapping[str, InstanceType]:
        return self._types

    @property
    def zones(self) -> Mapping[str, str | None]:
        """Zone names and the provider's ID of each; None if it is unknown."""
        return self._zones

    @property
    def label_keys(self) -> frozenset[str]:
        """Every label that some type constrains: the provider's well-known labels."""
        if self._label_keys[0] != self.version:
            listed = self._listed_keys
            names: Iterable[str] = self._types if listed is None else self._learnt
            keys = frozenset(key for name in names for key in self._types[name].requirements)
            self._label_keys = (self.version, keys if listed is None else keys | listed)
        return self._label_keys[1]

    def is_learnt(self, name: str) -> bool:
        return name in self._learnt

    def price(self, name: str, zone: str, capacity_type: str) -> float | None:
        """Return USD per hour, in stock or not; None if unknown."""
        instance_type = self._types.get(name)
        if instance_type is not None:
            for offering in instance_type.offerings:
                if offering.zone == zone and offering.capacity_type == capacity_type:
                    return offering.price_per_hour
            if zone in self._zones:
                return None  # not sold there, as far as known
        return self._list_price(name, zone, capacity_type)

    def price_of_running(self, name: str, zone: str, capacity_type: str) -> float | None:
        """Return the same for a running node, also in a zone where its type is no longer sold."""
        price = self.price(name, zone, capacity_type)
        return self._list_price(name, zone, capacity_type) if price is None else price

    def knows_price_of(self, name: str) -> bool:
        """Whether any price of the type is known, in any zone."""
        if self._prices is not None and name in self._prices.on_demand:
            return True
        instance_type = self._types.get(name)
        return instance_type is not None and any(
            offering.price_per_hour is not None for offering in instance_type.offerings
        )

    def _list_price(self, name: str, zone: str, capacity_type: str) -> float | None:
        """Return the list price for a zone of the region; a node may run where its type is no longer sold."""
        if self._prices is None or not (zone in self._zones or self._is_own_zone(zone)):
            return None
        return self._prices.price(name, self._zones.get(zone), capacity_type)

    def _is_own_zone(self, zone: str) -> bool:
        if not self._open_zones:
            return False
        if not zone:
            return True  # unknown zone: the regional on-demand price, or the spot median
        if self.provider == "azure" and _FAULT_DOMAIN.fullmatch(zone):
            return True
        ending = _ZONE_ENDINGS.get(self.provider)
        return (
            ending is not None
            and zone.startswith(self.region)
            and ending.fullmatch(zone, len(self.region)) is not None
        )

    def learn(self, source: Node | NodeClaim) -> bool:
        """Learn what a live node shows and the catalogue lacks; return whether there was anything new.

        That is: the ID of its zone, an unlisted type (its shape, without a price), and a zone or capacity
        type in which a type turns out to be sold. Raises Invalid if the node's resources cannot be read.
        """
        labels = source.labels
        name, zone = labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, "")
        changed = self._learn_zone(zone, labels.get(ZONE_ID))
        if name:
            changed |= self._learn_type(name, source)
            changed |= self._learn_offering(name, zone, capacity_type_of(labels))
        self.version += changed
        return changed

    def _learn_zone(self, zone: str, zone_id: str | None) -> bool:
        if self._prices is None or not zone or self._zones.get(zone, "") == zone_id:
            return False
        if zone_id in self._prices.zone_ids:
            self._zones[zone] = zone_id
        elif zone not in self._zones and zone.startswith(self.region) and self._is_own_zone(zone):
            self._zones[zone] = None
        else:
            return False
        self._types.forget(name for name in self._types if name not in self._learnt)
        return True

    def _sold(self, name: str) -> InstanceType:
        """Return a listed type with its current offerings."""
        listed, seen = self._listed[name], self._seen.get(name, ())
        if self._prices is None or name not in self._prices.on_demand:
            return listed.sold_as((*listed.offerings, *seen)) if seen else listed
        priced = self._prices.offerings(name, self._zones)
        places = {(offering.zone, offering.capacity_type) for offering in priced} if seen else ()
        others = [one for one in seen if (one.zone, one.capacity_type) not in places]
        return listed.sold_as((*priced, *others))

    def _learn_type(self, name: str, source: Node | NodeClaim) -> bool:
        if name in self._types and name not in self._learnt:
            return False
        allocatable = _resources(source, "allocatable")
        if not allocatable:
            return False
        learned = InstanceType(
            name, _type_labels(source.labels), _resources(source, "capacity") or allocatable, allocatable
        )
        before = self._types.get(name)
        if before is not None:
            learned = replace(
                before,
                capacity=_smaller(before.capacity, learned.capacity),
                allocatable=_smaller(before.allocatable, learned.allocatable),
            )
        self._types.put(learned)
        self._learnt.add(name)
        return learned != before

    def _learn_offering(self, name: str, zone: str, capacity_type: str) -> bool:
        instance_type = self._types.get(name)
        if instance_type is None or not zone or not capacity_type:
            return False
        if any(
            offering.zone == zone and offering.capacity_type == capacity_type
            for offering in instance_type.offerings
        ):
            return False
        price = self._list_price(name, zone, capacity_type)
        seen = Offering(zone, capacity_type, price)
        self._seen[name] = (*self._seen.get(name, ()), seen)
        self._types.put(instance_type.sold_as((*instance_type.offerings, seen)))
        return True


def family_of(instance_type: InstanceType) -> str:
    """Return the family that the cloud names; else the part of the name before the first dot or dash."""
    for key in FAMILY_LABELS:
        values = instance_type.requirements.get(key)
        if values is not None and len(values.values) == 1:
            return next(iter(values.values))
    return re.split(r"[.-]", instance_type.name, maxsplit=1)[0]


def capacity_type_of(labels: Labels) -> str:
    """Return the capacity type of a node; empty if its labels do not say."""
    if CAPACITY_TYPE in labels:
        return labels[CAPACITY_TYPE]
    if (named := capacity_type_named(labels.get(_EKS_CAPACITY_TYPE, ""))) in (ON_DEMAND, SPOT):
        return named
    for (key, value), kind in _CAPACITY_TYPE_LABELS.items():
        if labels.get(key) == value:
            return kind
    return ON_DEMAND if any(key in labels for key in _SILENT_ON_DEMAND) else ""


def _type_labels(labels: Labels) -> dict[str, ValueSet]:
    return {
        key: ValueSet(frozenset((value,)))
        for key, value in labels.items()
        if key in (INSTANCE_TYPE, ARCH, OS) or _TYPE_LABEL.match(key)
    }


def _resources(source: Node | NodeClaim, kind: str) -> Resources:
    status = source.status
    try:
        return resources.parse(status.capacity if kind == "capacity" else status.allocatable)
    except Invalid as error:
        raise error.at(f"status.{kind}") from None


def _smaller(first: Resources, second: Resources) -> Resources:
    """Return what every node of the type had. A device that one node did not show yet is not zero."""
    names = first.keys() | second.keys()
    return {
        name: min(first.get(name) or second.get(name, 0), second.get(name) or first.get(name, 0))
        for name in sorted(names)
    }
