"""The bill of a cluster, and the bill with other machines. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import fsum

from karpool.model.contracts.contract import BilledKind, Contract, Fleet
from karpool.packing.new_nodes.pack_result import LaunchOption


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """The cost of some new machines in USD per hour: added to the bill, and by list price.

    A cost is None if a price is unknown. The list price is omitted where only list prices apply.
    """

    per_hour: float | None
    list_per_hour: float | None = None


@dataclass(frozen=True)
class FleetBill:
    """The bill of all machines under a contract.

    `fleet` are the billed machines, including `others` of other clusters under the same contract; `kind_of`
    returns how a new machine of a pool would be billed. `intents` are machines that other clusters may be
    about to launch; `unheard` are clusters whose use is unknown.
    """

    contract: Contract
    fleet: Fleet
    others: Fleet
    kind_of: Callable[[str, LaunchOption], BilledKind | None]
    list_price_of: Callable[[str, LaunchOption], float | None]
    intents: Fleet = field(default_factory=dict)
    unheard: tuple[str, ...] = ()

    def beyond(self, fleet: Fleet) -> float:
        """Return the cost beyond the commitments; full rates if unheard clusters may have used them up."""
        if self.unheard:
            return fsum(kind.rate * count for kind, count in fleet.items() if count > 0)
        return self.contract.beyond(fleet)

    @property
    def own(self) -> Fleet:
        return {kind: count - self.others.get(kind, 0) for kind, count in self.fleet.items()}

    def per_hour(self, own: Fleet) -> float:
        """Return what the machines of this cluster add to the common bill, plus the commitments."""
        everything = self.with_more_of(self.others, own)
        by_others = self.contract.beyond(self.others) - self.contract.beyond({})
        return self.contract.bill(everything).per_hour - by_others

    @staticmethod
    def with_more_of(fleet: Fleet, more: Fleet) -> Fleet:
        return {kind: fleet.get(kind, 0) + more.get(kind, 0) for kind in (*fleet, *more)}

    def without(self, fleet: Fleet, kinds: Iterable[BilledKind | None]) -> Fleet:
        """Return the fleet without these machines; a machine of unknown price is on no bill."""
        smaller = dict(fleet)
        for kind in kinds:
            if kind is not None:
                smaller[kind] = smaller.get(kind, 0) - 1
        return smaller

    def with_more(self, fleet: Fleet, kinds: Iterable[BilledKind | None]) -> Fleet:
        larger = dict(fleet)
        for kind in kinds:
            if kind is not None:
                larger[kind] = larger.get(kind, 0) + 1
        return larger


class LaunchBilling:
    """The cost of new machines, one group after the other.

    A commitment that one group uses is not available to the next.
    """

    def __init__(
        self, bill: FleetBill | None, list_price_of: Callable[[str, LaunchOption], float | None] | None = None
    ) -> None:
        """`list_price_of` is used without a bill, if prices differ from the list."""
        self._bill = bill
        self._list_price_of = list_price_of if bill is None else bill.list_price_of
        self._fleet: Fleet = {} if bill is None else bill.fleet

    def cost(self, pool: str, launches: Iterable[tuple[int, LaunchOption]]) -> LaunchCost:
        machines = list(launches)
        listed = None
        if self._list_price_of is not None:
            listed = _sum((count, self._list_price_of(pool, option)) for count, option in machines)
        if self._bill is None:
            return LaunchCost(_sum((count, option.price_per_hour) for count, option in machines), listed)
        kinds = [(count, self._bill.kind_of(pool, option)) for count, option in machines]
        more = {kind: 0 for _, kind in kinds if kind is not None}
        for count, kind in kinds:
            if kind is None:
                return LaunchCost(None, listed)
            more[kind] += count
        larger = self._bill.with_more_of(self._fleet, more)
        added = self._bill.beyond(larger) - self._bill.beyond(self._fleet)
        self._fleet = larger
        return LaunchCost(max(added, fsum(kind.least * count for kind, count in more.items())), listed)


def _sum(prices: Iterable[tuple[int, float | None]]) -> float | None:
    """Return the sum; None if there are no prices or one is unknown."""
    total: list[float] = []
    for count, price in prices:
        if price is None:
            return None
        total.append(count * price)
    return fsum(total) if total else None
