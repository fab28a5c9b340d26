"""What a provider sells: instance types, where, and for how much.

A catalogue belongs to one provider and region. A price that is not known is None
and stays None; nothing here estimates one. Types that the catalogue does not list
are learnt from live nodes: their shape, without a price.

How catalogues are stored and read is in `files`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT, NodeClaim
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import ARCH, INSTANCE_TYPE, OS, ZONE, Node
from karpool.model.requirements import Requirements, ValueSet
from karpool.model.resources import Resources

ZONE_ID = "topology.k8s.aws/zone-id"


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to buy a type. `available` is False while the provider is out of stock."""

    zone: str
    capacity_type: str
    price_per_hour: float | None
    available: bool = True

    def __post_init__(self) -> None:
        if self.price_per_hour is not None:
            checked_price(self.price_per_hour)


@dataclass(frozen=True, slots=True)
class InstanceType:
    """`requirements` are the labels its nodes get; one value each, or several while the zone is open.

    A provider label that the type does not have is there as DoesNotExist.
    """

    name: str
    requirements: Requirements = field(hash=False)
    capacity: Resources = field(hash=False)
    allocatable: Resources = field(hash=False)
    offerings: tuple[Offering, ...] = ()

    def sold_as(self, offerings: Iterable[Offering]) -> "InstanceType":
        """The same type with other offerings; the zones and capacity types in its labels follow."""
        chosen = tuple(offerings)
        return replace(
            self,
            offerings=chosen,
            requirements={
                **self.requirements,
                ZONE: _one_of(frozenset(offering.zone for offering in chosen)),
                CAPACITY_TYPE: _one_of(frozenset(offering.capacity_type for offering in chosen)),
            },
        )

    def price(self, zone: str, capacity_type: str) -> float | None:
        for offering in self.offerings:
            if offering.zone == zone and offering.capacity_type == capacity_type:
                return offering.price_per_hour
        return None


@lru_cache(maxsize=1024)
def _one_of(values: frozenset[str]) -> ValueSet:
    """Shared, because nearly all types of a region are sold in the same zones."""
    return ValueSet(values)


def checked_price(price: float) -> float:
    """Raises Invalid unless the price can be added and compared."""
    if not isinstance(price, int | float) or isinstance(price, bool) or not math.isfinite(price) or price < 0:
        raise Invalid("pricePerHour", price, "must be a finite number of USD per hour, 0 or more")
    return float(price)


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices of one region, by the provider's own zone ids.

    The zone names that nodes carry differ from account to account; which name is which
    id is learnt from nodes that carry both.
    """

    zone_ids: tuple[str, ...]
    on_demand: Mapping[str, float | None]
    spot: Mapping[str, Mapping[str, float]]  # type, then zone id
    spot_median: Mapping[str, float | None]

    def offerings(self, name: str, zones: Mapping[str, str | None]) -> tuple[Offering, ...]:
        """In zones whose id is known: that zone's own price, and nothing where the type is not sold.

        In the others, the median over the region's zones.
        """
        spot, fixed = self.spot.get(name, {}), self.on_demand.get(name)
        offerings: list[Offering] = []
        for zone, zone_id in zones.items():
            if zone_id is not None and spot and zone_id not in spot:
                continue
            offerings.append(Offering(zone, ON_DEMAND, fixed))
            if spot:
                price = self.spot_median.get(name) if zone_id is None else spot[zone_id]
                offerings.append(Offering(zone, SPOT, price))
        return tuple(offerings)


# Labels that come with the type, on any cloud that Karpenter has a provider for.
_TYPE_LABEL = re.compile(r"(karpenter\.[^/]+|eks\.amazonaws\.com)/(instance|sku)-")
# How nodes that Karpenter did not create say what they are billed as.
_CAPACITY_TYPE_LABELS = {
    ("eks.amazonaws.com/capacityType", "SPOT"): SPOT,
    ("eks.amazonaws.com/capacityType", "ON_DEMAND"): ON_DEMAND,
    ("cloud.google.com/gke-spot", "true"): SPOT,
    ("kubernetes.azure.com/scalesetpriority", "spot"): SPOT,
}


class Catalogue:
    """Instance types of one provider and region by name. `version` rises with every change."""

    def __init__(
        self,
        provider: str,
        region: str,
        types: Iterable[InstanceType] = (),
        *,
        as_of: str = "",
        prices: PriceList | None = None,
        zones: Mapping[str, str | None] | None = None,
    ) -> None:
        self.provider = provider
        self.region = region
        self.as_of = as_of
        self.version = 0
        self._prices = prices
        self._zones = dict(zones or {})
        self._learnt: set[str] = set()
        self._label_keys: tuple[int, frozenset[str]] = (-1, frozenset())
        self._types = {instance_type.name: instance_type for instance_type in types}
        if prices is not None:
            self._price_all()

    @property
    def types(self) -> Mapping[str, InstanceType]:
        return self._types

    @property
    def zones(self) -> Mapping[str, str | None]:
        """Zone names and the provider's id of each; None where that is not known."""
        return self._zones

    @property
    def label_keys(self) -> frozenset[str]:
        """Every label that some type constrains: the provider's well-known labels."""
        if self._label_keys[0] != self.version:
            keys = frozenset(
                key for instance_type in self._types.values() for key in instance_type.requirements
            )
            self._label_keys = (self.version, keys)
        return self._label_keys[1]

    def is_learnt(self, name: str) -> bool:
        return name in self._learnt

    def price(self, name: str, zone: str, capacity_type: str) -> float | None:
        """USD per hour, whether in stock or not; None when it is not known."""
        instance_type = self._types.get(name)
        return None if instance_type is None else instance_type.price(zone, capacity_type)

    def learn(self, source: Node | NodeClaim) -> bool:
        """Take over what a live node shows and the catalogue lacks; True when that was anything.

        That is: the id of its zone, a type that is not listed (its shape, without a price), and
        a zone or capacity type in which a type is sold after all. Raises Invalid when the node's
        resources cannot be read.
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
        if zone_id not in self._prices.zone_ids:
            return False
        self._zones[zone] = zone_id
        self._price_all()
        return True

    def _price_all(self) -> None:
        assert self._prices is not None
        for name in self._prices.on_demand:
            priced = self._prices.offerings(name, self._zones)
            places = {(offering.zone, offering.capacity_type) for offering in priced}
            others = [
                offering
                for offering in self._types[name].offerings
                if offering.zone not in self._zones and (offering.zone, offering.capacity_type) not in places
            ]
            self._types[name] = self._types[name].sold_as((*priced, *others))

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
        self._types[name] = learned
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
        fixed = self._prices.on_demand.get(name) if self._prices and zone in self._zones else None
        price = fixed if capacity_type == ON_DEMAND else None  # on-demand costs the same in every zone
        self._types[name] = instance_type.sold_as(
            (*instance_type.offerings, Offering(zone, capacity_type, price))
        )
        return True


def capacity_type_of(labels: Labels) -> str:
    """Empty when the node does not say."""
    if CAPACITY_TYPE in labels:
        return labels[CAPACITY_TYPE]
    return next(
        (kind for (key, value), kind in _CAPACITY_TYPE_LABELS.items() if labels.get(key) == value), ""
    )


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
    """What every node of the type had. A device that one did not show yet does not count as none."""
    names = first.keys() | second.keys()
    return {
        name: min(first.get(name) or second.get(name, 0), second.get(name) or first.get(name, 0))
        for name in sorted(names)
    }
