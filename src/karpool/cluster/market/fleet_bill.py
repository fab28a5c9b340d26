"""The bill of a cluster, and what it would be with other machines. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from karpool.model.contracts.contract import BilledKind, Contract, Fleet
from karpool.packing.new_nodes.pack_result import LaunchOption


@dataclass(frozen=True)
class FleetBill:
    """`fleet` are the machines that are billed; `kind_of` says how a new one of a pool would be."""

    contract: Contract
    fleet: Fleet
    kind_of: Callable[[str, LaunchOption], BilledKind | None]
    list_price_of: Callable[[LaunchOption], float | None]

    def beyond(self, fleet: Fleet) -> float:
        return self.contract.beyond(fleet)

    def without(self, fleet: Fleet, kinds: Iterable[BilledKind | None]) -> Fleet:
        """A machine whose price is not known is on no bill."""
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
