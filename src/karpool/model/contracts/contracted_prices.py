"""Effective prices of one cluster: the list, discounts, and what its machines leave of commitments.

What a NodeOverlay says counts first; then what was learnt of the nodes (`learnt_prices`); then the list less
its discount. Commitments are drawn from at that rate.

Until the machines are known, commitments count as used up: a price is then too high rather than too low.
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

# So often a contract is asked for again: a ConfigMap takes about a minute to reach a pod.
_READ_AGAIN_SECONDS = 10.0

ReadAgain = Callable[[], Contract | None]
AskPrices = Callable[[PriceSource], PriceAnswer]  # the latest answer, at once
AskUses = Callable[[MeetingPlace], "HeardUses"]  # so, too


def billed_kind(catalogue: Catalogue, name: str, zone: str, capacity_type: str, price: float) -> BilledKind:
    """Machines of a type by how they are billed at a price."""
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
    """What another cluster under the contract has, and what it is about to launch."""

    machines: Fleet
    intends: Fleet


@dataclass(frozen=True)
class HeardUses:
    """By cluster, the own one included; what is old is left out. `remarks` say why somebody is missing."""

    uses: Mapping[str, ClusterUse] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class ContractedPrices:
    """`version` rises whenever a price may have changed. `contract` is what holds now."""

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
        """`others` are machines of clusters under the same contract, as they are at the moment.
        `read_again` gives another contract when there is one. What is written of `seen_clusters` does not
        count: they are looked at. `ask_prices` asks where the contract says that prices are learnt,
        `ask_uses` where it says that clusters meet. `name` is what the contract calls this cluster, among
        those that share it."""
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
        self.fleet: Fleet = {}  # with those of others
        self._others = others
        self._is_stale = True  # the fleet was not judged under this contract
        self._headroom: tuple[float, ...] = (0.0,) * len(self.contract.commitments)
        self._prices: Mapping[BilledKind, float] = {}

    def __bool__(self) -> bool:
        return bool(self._written)

    def see_time(self, now: float) -> None:
        """Agreements begin and end, and may be written anew."""
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
        """Whether there is news of what nodes cost."""
        return bool(self.source) and self._wants_nodes

    def see_nodes(self, nodes: Iterable[PricedNode]) -> None:
        """All nodes of this cluster: which of them cost what somebody says."""
        self._wants_nodes = False
        learnt, self._not_learnt = learnt_prices(nodes, self._answer)
        if learnt != self._learnt:
            self._learnt = learnt
            self.version += 1

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why prices are not what they could be."""
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
        """All machines of this cluster that are billed, those that are going left out."""
        before, self.own, self.fleet = self.fleet, fleet, fleet
        others = self.others
        if others:
            self.fleet = Counter(fleet) + Counter(others)
        fleet = self.fleet
        is_judged, self._is_stale = fleet == before and not self._is_stale, False
        if not self.contract.commitments or is_judged:
            return
        self.version += 1
        if self.unheard:  # somebody may have used them up
            self._headroom, self._prices = (0.0,) * len(self.contract.commitments), {}
            return
        self._headroom = self.contract.headroom(fleet)
        self._prices = self.contract.prices(fleet)

    def see_uses(self, uses: Mapping[str, ClusterUse], *, is_silent: bool = False) -> None:
        """What other clusters say they have, those of which it is old left out. `is_silent`: they cannot
        hear of this one."""
        if (uses, is_silent) != (self._uses, self._is_silent):
            self._uses, self._is_silent = uses, is_silent
            self._is_stale = True

    @property
    def unheard(self) -> tuple[str, ...]:
        """Clusters under the contract of which nobody knows what they use."""
        if self._is_nameless:
            return tuple(sorted(self.contract.shared_by))
        heard = {*self._uses, *self.contract.elsewhere, *self._seen_clusters()}
        unheard = self.contract.shared_by - heard - {self._name}
        if not self._name and len(unheard) == 1 and len(self.contract.shared_by) > 1:
            return ()  # that is this one
        silent = {self._name} if self._is_silent else set()
        return tuple(sorted(unheard | silent)) if self.contract.commitments else ()

    def see_name(self, name: str) -> None:
        """What the cluster calls itself: believed if the contract knows it, and nobody has said another."""
        if not self._name and name in self._written.shared_by:
            self._name, self._is_stale = name, True

    @property
    def _is_nameless(self) -> bool:
        """Whether what this cluster wrote cannot be told from what others wrote."""
        is_read = self._ask_uses is not None and self.contract.shared_in is not None
        return is_read and bool(self.contract.commitments) and self._name not in self.contract.shared_by

    @property
    def intents(self) -> Fleet:
        """Machines that other clusters are about to launch; they may be there, or not."""
        intents: Counter[BilledKind] = Counter()
        for cluster, use in self._uses.items():
            if cluster not in self._seen_clusters():
                intents.update(use.intends)
        return intents

    @property
    def wants_fleet(self) -> bool:
        """Whether prices may change though no machine of this cluster does."""
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
        """Machines of a type by how they are billed; a price that an overlay set, or that was learnt, is not
        discounted again."""
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
        """A type with what one more of it would cost, wherever it is sold."""
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
