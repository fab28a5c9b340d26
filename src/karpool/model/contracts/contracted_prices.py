"""Effective prices of one cluster: the list, discounts, and what its machines leave of commitments.

Until the machines are known, commitments count as used up: a price is then too high rather than too low.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering, family_of
from karpool.model.contracts.contract import BilledKind, Contract, Fleet
from karpool.model.resources import CPU


class ContractedPrices:
    """`version` rises whenever a price may have changed."""

    def __init__(self, contract: Contract | None = None, others: Callable[[], Fleet] | None = None) -> None:
        """`others` are machines of clusters under the same contract, as they are at the moment."""
        self.contract = contract if contract is not None else Contract()
        self.version = 0
        self.own: Fleet = {}
        self.fleet: Fleet = {}  # with those of others
        self._others = others
        self._headroom: tuple[float, ...] = (0.0,) * len(self.contract.commitments)
        self._prices: Mapping[BilledKind, float] = {}

    def __bool__(self) -> bool:
        return bool(self.contract)

    def see_fleet(self, fleet: Fleet) -> None:
        """All machines of this cluster that are billed, those that are going left out."""
        before, self.own, self.fleet = self.fleet, fleet, fleet
        if self._others is not None:
            self.fleet = Counter(fleet) + Counter(self._others())
        fleet = self.fleet
        if not self.contract.commitments or (self.version and fleet == before):
            return
        self.version += 1
        self._headroom = self.contract.headroom(fleet)
        self._prices = self.contract.prices(fleet)

    @property
    def is_shared(self) -> bool:
        return self._others is not None

    def price(self, kind: BilledKind) -> float:
        """What a machine of the fleet adds to the bill."""
        price = self._prices.get(kind)
        return kind.rate if price is None else price

    def kind(
        self,
        catalogue: Catalogue,
        name: str,
        zone: str,
        capacity_type: str,
        price: float,
        *,
        overlaid: bool = False,
    ) -> BilledKind:
        """Machines of a type by how they are billed; a price that an overlay set is not discounted again."""
        instance_type = catalogue.types.get(name)
        listed = BilledKind(
            cpus=instance_type.capacity.get(CPU, 0) / 1000 if instance_type is not None else 0.0,
            type=name,
            family=family_of(instance_type) if instance_type is not None else name.partition(".")[0],
            provider=catalogue.provider,
            region=catalogue.region,
            zone=zone,
            capacity_type=capacity_type,
            rate=price,
        )
        return listed if overlaid else self._discounted(listed)

    def _discounted(self, listed: BilledKind) -> BilledKind:
        rate = self.contract.rate(listed)
        if rate == listed.rate:
            return listed
        return BilledKind(
            listed.cpus,
            listed.type,
            listed.family,
            listed.provider,
            listed.region,
            listed.zone,
            listed.capacity_type,
            rate,
        )

    def applied(
        self, catalogue: Catalogue, listed: InstanceType, overlaid: InstanceType | None = None
    ) -> InstanceType:
        """A type with what one more of it would cost, wherever it is sold."""
        sold = listed if overlaid is None else overlaid
        before = {(each.zone, each.capacity_type): each.price_per_hour for each in listed.offerings}
        offerings = []
        for offering in sold.offerings:
            price = offering.price_per_hour
            if price is not None:
                is_overlaid = price != before.get((offering.zone, offering.capacity_type))
                kind = self.kind(
                    catalogue, sold.name, offering.zone, offering.capacity_type, price, overlaid=is_overlaid
                )
                price = self.contract.added(kind, self._headroom)
            offerings.append(Offering(offering.zone, offering.capacity_type, price, offering.available))
        return InstanceType(
            sold.name, sold.requirements, sold.capacity, sold.allocatable, tuple(offerings), sold.gpu
        )
