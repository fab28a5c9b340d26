"""Offers for a claim in order of preference, and offerings that were recently out of stock.

The choice is that of the AWS provider: the preferred capacity type that is allowed and in stock, spot only
where it is cheaper than on-demand, machines with unrequested devices last, and the cheapest first. Offerings
without stock are excluded for a while; a restart forgets them, as upstream.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from karpool.kube.clock import Clock
from karpool.model.catalogue.catalogue import Catalogue, InstanceType
from karpool.model.karpenter.node_overlay import NodeOverlays
from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    NODEPOOL,
    ON_DEMAND,
    RESERVED,
    SPOT,
    CompiledPool,
    NodeClaim,
    requested,
    requirements_of,
)
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.offerings import Offerings, PoolOfferings, StockOut
from karpool_fleet.cloud.cloud import CloudOffer

_PREFERENCE = (RESERVED, SPOT, ON_DEMAND)
_CACHE_LIMIT = 256


class UnavailableOfferings:
    """Offerings without stock, until they are tried again. `version` changes with the content."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.version = 0
        self._clock = clock
        self._seconds = seconds
        self._until: dict[CloudOffer, float] = {}

    def mark(self, offers: Iterable[CloudOffer]) -> None:
        until = self._clock.monotonic() + self._seconds
        for offer in offers:
            self.version += offer not in self._until
            self._until[offer] = until

    def current(self) -> Collection[CloudOffer]:
        now = self._clock.monotonic()
        over = [offer for offer, until in self._until.items() if until <= now]
        for offer in over:
            del self._until[offer]
        self.version += bool(over)
        return self._until.keys()

    def stock_outs(self) -> list[StockOut]:
        return [StockOut(*offer) for offer in self.current()]


class Priced(NamedTuple):
    price: float
    offer: CloudOffer
    exotic: bool


class LaunchMarket:
    """The market of launches.

    `overlays` change price and capacity of types for a pool; the cloud's price stays.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        unavailable: UnavailableOfferings,
        types_max: int,
        overlays: NodeOverlays | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.offerings = Offerings(catalogue, overlays)
        self.unavailable = unavailable
        self._types_max = types_max
        self._known: dict[bytes, tuple[int, int, tuple[CloudOffer, ...]]] = {}

    def offers(self, claim: NodeClaim) -> tuple[CloudOffer, ...]:
        """Return the offers in order; empty if nothing fits or is in stock. Raises Invalid."""
        out = self.unavailable.current()
        key = msgspec.msgpack.encode((claim.pool_name, claim.spec.requirements, claim.spec.resources))
        remembered = self._known.get(key)
        if remembered is not None and remembered[:2] == (self.offerings.version, self.unavailable.version):
            return remembered[2]
        offers = self._find(claim, out)
        if len(self._known) >= _CACHE_LIMIT:
            self._known.clear()
        self._known[key] = (self.offerings.version, self.unavailable.version, offers)
        return offers

    def price(self, labels: Labels) -> float | None:
        """Return the price of a node."""
        name, zone, kind = (labels.get(key, "") for key in (INSTANCE_TYPE, ZONE, CAPACITY_TYPE))
        if self.offerings.overlays and name in self.catalogue.types:
            overlaid = self.type_of(labels.get(NODEPOOL, ""), name).price(zone, kind)
            if overlaid is not None:
                return overlaid
        return self.catalogue.price(name, zone, kind)

    def type_of(self, pool: str, name: str) -> InstanceType:
        """Return the type with the overlays of a pool."""
        return self.overlaid(pool, self.catalogue.types[name])

    def overlaid(self, pool: str, instance_type: InstanceType) -> InstanceType:
        overlays, catalogue = self.offerings.overlays, self.catalogue
        if not overlays:
            return instance_type
        return overlays.types(catalogue.types, catalogue.version).applied(pool, instance_type)

    def _find(self, claim: NodeClaim, out: Collection[CloudOffer]) -> tuple[CloudOffer, ...]:
        requirements = requirements_of(claim.spec.requirements or (), "spec.requirements")
        need = requested(claim.spec)
        pool = PoolOfferings(
            CompiledPool(claim.pool_name, requirements=requirements),
            [self.overlaid(claim.pool_name, offered) for offered in self.catalogue.types.values()],
            self.catalogue.label_keys,
        )
        sold: list[Priced] = []
        for row, instance_type in enumerate(pool.types):
            if not fits(instance_type, need):
                continue
            exotic = _is_exotic(instance_type, need)
            for zone_code, kind_code in zip(*pool.listed[row].nonzero(), strict=True):
                offer = CloudOffer(instance_type.name, pool.zones[zone_code], pool.capacity_types[kind_code])
                if offer not in out:
                    sold.append(Priced(float(pool.prices[row, zone_code, kind_code]), offer, exotic))
        return chosen(sold, self._types_max)

    def capacity_types(
        self, types: Iterable[str], zones: ValueSet | None, kinds: ValueSet | None
    ) -> list[str]:
        """Return the capacity types, among those requested, in which any of these types is in stock."""
        out = self.unavailable.current()
        found: set[str] = set()
        for name in types:
            for offering in self.catalogue.types[name].offerings:
                kind = offering.capacity_type
                if kind in found or not offering.available or CloudOffer(name, offering.zone, kind) in out:
                    continue
                if (zones is None or offering.zone in zones) and (kinds is None or kind in kinds):
                    found.add(kind)
        return sorted(found)


def chosen(sold: Collection[Priced], types_max: int) -> tuple[CloudOffer, ...]:
    """Return the offers of one launch, cheapest first."""
    plain = [offering for offering in sold if not offering.exotic]
    sold = plain or sold
    dearest_spot = min(
        (offering.price for offering in sold if offering.offer.capacity_type == ON_DEMAND), default=None
    )
    usable = [
        offering
        for offering in sold
        if offering.offer.capacity_type != SPOT or dearest_spot is None or offering.price <= dearest_spot
    ]
    kinds = {offering.offer.capacity_type for offering in usable}
    kind = next((capacity_type for capacity_type in _PREFERENCE if capacity_type in kinds), None)
    ordered = sorted(
        (offering for offering in usable if offering.offer.capacity_type == kind),
        key=lambda offering: (offering.price, offering.offer),
    )
    types = dict.fromkeys(offering.offer.type for offering in ordered)
    kept = set(list(types)[:types_max])
    return tuple(priced.offer for priced in ordered if priced.offer.type in kept)


def fits(instance_type: InstanceType, need: Mapping[str, int]) -> bool:
    return all(instance_type.allocatable.get(name, 0) >= units for name, units in need.items())


_ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "aws.amazon.com/neuron")


def _is_exotic(instance_type: InstanceType, need: Mapping[str, int]) -> bool:
    """Whether a type is bare metal, or has accelerators that are not requested."""
    if "metal" in instance_type.name:
        return True
    return any(instance_type.capacity.get(name) and not need.get(name) for name in _ACCELERATORS)
