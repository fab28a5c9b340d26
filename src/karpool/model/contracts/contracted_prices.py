"""Effective prices of one cluster: list prices, discounts, and what its machines leave of commitments.

A NodeOverlay has precedence, then prices learnt from nodes (`learnt_prices`), then the list price with its
discount. Commitments are used at that rate.

Until the machines are known, commitments count as used up: a price is then rather too high than too low.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering, family_of
from karpool.model.contracts.contract import BilledKind, Contract, Fleet, MeetingPlace
from karpool.model.contracts.learnt_prices import (
    PriceAnswer,
    PricedNode,
    PriceSource,
    SoldAs,
    learnt_prices,
)
from karpool.model.resources import CPU

# How often the contract is read again: a ConfigMap takes about a minute to reach a pod.
_READ_AGAIN_SECONDS = 10.0

ReadAgain = Callable[[], Contract | None]
AskPrices = Callable[[PriceSource], PriceAnswer]  # returns the latest answer at once
AskUses = Callable[[MeetingPlace], "HeardUses"]  # returns the latest answer at once


def billed_kind(catalogue: Catalogue, name: str, zone: str, capacity_type: str, price: float) -> BilledKind:
    """Return how machines of a type are billed at a price."""
    instance_type = catalogue.types.get(name)
    return BilledKind(
        cpus=instance_type.capacity.get(CPU, 0) / 1000 if instance_type is not None else 0.0,
        type=name,
        family=family_of(instance_type) if instance_type is not None else name.partition(".")[0],
        provider=catalogue.provider,
        region=catalogue.region,
        zone=zone,
        capacity_type=capacity_type,
        rate=price,
    )


@dataclass(frozen=True)
class ClusterUse:
    """The machines of another cluster under the contract, and those that it is about to launch."""

    machines: Fleet
    intends: Fleet


@dataclass(frozen=True)
class HeardUses:
    """Uses by cluster, including this one; old ones are left out. `remarks` say why a cluster is missing."""

    uses: Mapping[str, ClusterUse] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class ContractedPrices:
    """`version` increases whenever a price may have changed. `contract` is the one in force."""

    def __init__(
        self,
        contract: Contract | None = None,
        others: Callable[[], Fleet] | None = None,
        *,
        read_again: ReadAgain | None = None,
        seen_clusters: Callable[[], Collection[str]] = frozenset,
        ask_prices: AskPrices | None = None,
        ask_uses: AskUses | None = None,
        name: str = "",
    ) -> None:
        """`others` returns the current machines of other clusters under the same contract.

        `read_again` returns a new contract after a change. `seen_clusters` are observed here, so their
        entries in the contract are ignored. `ask_prices` reads the price source of the contract, `ask_uses`
        the shared namespace. `name` is the name of this cluster in the contract.
        """
        self._written = contract if contract is not None else Contract()
        self.contract = self._written.at(None)
        self.version = 0
        self._read_again, self._seen_clusters = read_again, seen_clusters
        self._name = name
        self._uses: Mapping[str, ClusterUse] = {}
        self._ask_uses, self._not_heard = ask_uses, tuple[str, ...]()
        self._is_silent = False
        self._ask_prices, self._answer = ask_prices, PriceAnswer()
        self._learnt: dict[SoldAs, float] = {}
        self._not_learnt: tuple[str, ...] = ()
        self._wants_nodes = True  # there is an answer that no node was looked up in
        self._asked = self._changes_at = -inf
        self.own: Fleet = {}
        self.fleet: Fleet = {}  # own machines and those of others
        self._others = others
        self._is_stale = True  # the fleet was not priced under this contract
        self._headroom: tuple[float, ...] = (0.0,) * len(self.contract.commitments)
        self._prices: Mapping[BilledKind, float] = {}

    def __bool__(self) -> bool:
        return bool(self._written)

    def see_time(self, now: float) -> None:
        """Update to a time: agreements start and end, and the contract may have changed."""
        if self._read_again is not None and not 0 <= now - self._asked < _READ_AGAIN_SECONDS:
            self._asked = now
            if (written := self._read_again()) is not None:
                self._written, self._changes_at = written, -inf
        if self.source and self._ask_prices is not None:
            answer = self._ask_prices(self.source)
            if answer is not self._answer:
                self._answer, self._wants_nodes = answer, True
        if self._ask_uses is not None and self._written.shared_in is not None:
            heard = self._ask_uses(self._written.shared_in)
            self._not_heard = heard.remarks
            self.see_uses({name: use for name, use in heard.uses.items() if name != self._name})
        if now < self._changes_at:
            return
        self._changes_at = self._written.changes_after(now)
        contract = self._written.at(now)
        if contract != self.contract:
            self.contract = contract
            self.version += 1
            self._headroom, self._prices = (0.0,) * len(contract.commitments), {}
            self._is_stale = True

    @property
    def source(self) -> PriceSource:
        return self._written.prices_from

    @property
    def wants_nodes(self) -> bool:
        """Whether there are new prices of nodes."""
        return bool(self.source) and self._wants_nodes

    def see_nodes(self, nodes: Iterable[PricedNode]) -> None:
        """Learn prices from all nodes of this cluster."""
        self._wants_nodes = False
        learnt, self._not_learnt = learnt_prices(nodes, self._answer)
        if learnt != self._learnt:
            self._learnt = learnt
            self.version += 1

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why prices are less exact than they could be."""
        learnt = (*self._answer.remarks, *self._not_learnt) if self.source else ()
        sentences = [f"not learnt: {remark}; the list counts" for remark in learnt]
        if self._is_nameless:
            clusters = ", ".join(sorted(self.contract.shared_by))
            sentences.append(
                f"not known: which of {clusters} this cluster is; --contract-cluster says it. The commitments"
                " of the contract count as used up"
            )
        elif unheard := self.unheard:
            sentences += [f"not heard: {remark}" for remark in self._not_heard]
            sentences.append(
                f"not known: what {', '.join(unheard)} use{'' if len(unheard) > 1 else 's'} of the contract;"
                " its commitments count as used up, and no machine under them is moved"
            )
        return tuple(sentences)

    def learnt(self, catalogue: Catalogue, name: str, zone: str, capacity_type: str) -> float | None:
        return self._learnt.get(SoldAs.of(name, catalogue.region, zone, capacity_type))

    def see_fleet(self, fleet: Fleet) -> None:
        """Set the billed machines of this cluster, without those that are being removed."""
        before, self.own, self.fleet = self.fleet, fleet, fleet
        others = self.others
        if others:
            self.fleet = Counter(fleet) + Counter(others)
        fleet = self.fleet
        is_judged, self._is_stale = fleet == before and not self._is_stale, False
        if not self.contract.commitments or is_judged:
            return
        self.version += 1
        if self.unheard:  # the others may have used them up
            self._headroom, self._prices = (0.0,) * len(self.contract.commitments), {}
            return
        self._headroom = self.contract.headroom(fleet)
        self._prices = self.contract.prices(fleet)

    def see_uses(self, uses: Mapping[str, ClusterUse], *, is_silent: bool = False) -> None:
        """Set the uses of other clusters, without old ones.

        `is_silent`: the others cannot read the use of this cluster.
        """
        if (uses, is_silent) != (self._uses, self._is_silent):
            self._uses, self._is_silent = uses, is_silent
            self._is_stale = True

    @property
    def unheard(self) -> tuple[str, ...]:
        """Clusters under the contract whose use is unknown."""
        if self._is_nameless:
            return tuple(sorted(self.contract.shared_by))
        heard = {*self._uses, *self.contract.elsewhere, *self._seen_clusters()}
        unheard = self.contract.shared_by - heard - {self._name}
        if not self._name and len(unheard) == 1 and len(self.contract.shared_by) > 1:
            return ()  # the one that is left is this cluster
        silent = {self._name} if self._is_silent else set()
        return tuple(sorted(unheard | silent)) if self.contract.commitments else ()

    def see_name(self, name: str) -> None:
        """Set the name of the cluster if the contract has it, unless another was configured."""
        if not self._name and name in self._written.shared_by:
            self._name, self._is_stale = name, True

    @property
    def _is_nameless(self) -> bool:
        """Whether this cluster cannot tell its own entry from those of others."""
        is_read = self._ask_uses is not None and self.contract.shared_in is not None
        return is_read and bool(self.contract.commitments) and self._name not in self.contract.shared_by

    @property
    def intents(self) -> Fleet:
        """Machines that other clusters may be about to launch."""
        intents: Counter[BilledKind] = Counter()
        for cluster, use in self._uses.items():
            if cluster not in self._seen_clusters():
                intents.update(use.intends)
        return intents

    @property
    def wants_fleet(self) -> bool:
        """Whether prices may change without a change of this cluster's machines."""
        return self._is_stale or self._others is not None

    @property
    def others(self) -> Fleet:
        """Machines of other clusters under the same contract."""
        others: Counter[BilledKind] = Counter(self._others() if self._others is not None else {})
        said = {cluster: use.machines for cluster, use in self._uses.items()}
        for cluster, machines in {**self.contract.elsewhere, **said}.items():
            if cluster not in self._seen_clusters():
                others.update(machines)
        return others

    def price(self, kind: BilledKind) -> float:
        """Return what a machine of the fleet adds to the bill."""
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
        """Return how machines of a type are billed.

        A price from an overlay, or a learnt one, is not discounted again.
        """
        listed = billed_kind(catalogue, name, zone, capacity_type, price)
        learnt = self.learnt(catalogue, name, zone, capacity_type) if self._learnt and not overlaid else None
        if learnt is not None:
            return replace(listed, rate=learnt)
        if overlaid or (rate := self.contract.rate(listed)) == listed.rate:
            return listed
        return replace(listed, rate=rate)

    def applied(
        self, catalogue: Catalogue, listed: InstanceType, overlaid: InstanceType | None = None
    ) -> InstanceType:
        """Return a type with the cost of one more machine in each offering."""
        sold = listed if overlaid is None else overlaid
        before = {
            (offering.zone, offering.capacity_type): offering.price_per_hour for offering in listed.offerings
        }
        offerings = []
        for offering in sold.offerings:
            price = offering.price_per_hour
            if price is None:
                price = self.learnt(catalogue, sold.name, offering.zone, offering.capacity_type)
            if price is not None:
                is_overlaid = offering.price_per_hour != before.get((offering.zone, offering.capacity_type))
                kind = self.kind(
                    catalogue, sold.name, offering.zone, offering.capacity_type, price, overlaid=is_overlaid
                )
                price = self.contract.added(kind, self._headroom)
            offerings.append(Offering(offering.zone, offering.capacity_type, price, offering.available))
        return InstanceType(
            sold.name, sold.requirements, sold.capacity, sold.allocatable, tuple(offerings), sold.gpu
        )
