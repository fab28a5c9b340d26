"""Discounts, reservations and hourly commitments, and the bill of a fleet under them. Pure.

A discount is a fraction of the list price; the discounted price is the rate of a machine. A commitment is
paid for whether or not it is used. It has an amount: machines, CPUs, or dollars per hour at its own cheaper
rate. Machines use it until it is used up, and cost their rate beyond it. Commitments are used in the order of
the clouds: reservations, plans for families in a region, plans for everything; within one commitment, the
smallest machines first. Spot machines use none.

A capacity reservation is different: its slots are billed like machines, and use commitments like machines,
whether or not they are filled; the machines in them cost nothing more. Agreements may start and end;
`Contract.at` returns those in force at a time.

So what a machine adds to the bill depends on the others: next to nothing inside an unused commitment, its
rate beyond. Commitments may be shared with clusters that are not seen here: their use is subtracted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import fsum, inf

from karpool.model.contracts.learnt_prices import NOT_LEARNT, PriceSource
from karpool.model.karpenter.objects import ON_DEMAND, RESERVED

# A machine that is already paid for costs next to nothing, in proportion to its rate, to keep an order.
PAID_FOR_DIVISOR = 10_000_000
# Smaller amounts are rounding errors: a commitment is used up, or a machine covered.
_NOTHING = 1e-9


class CommitmentKind(StrEnum):
    """Kinds of commitments, in the order in which machines use them."""

    CAPACITY_RESERVATION = "capacity-reservation"
    RESERVATION = "reservation"
    COMMITTED_USE = "committed-use"
    INSTANCE_SAVINGS_PLAN = "instance-savings-plan"
    SAVINGS_PLAN = "savings-plan"


class CommitmentUnit(StrEnum):
    MACHINES = "machines"
    CPUS = "cpus"
    DOLLARS = "dollars"


@dataclass(frozen=True, slots=True, order=True)
class BilledKind:
    """Machines that are billed alike. `rate` is USD per hour after discounts, without commitments."""

    cpus: float
    type: str
    family: str
    provider: str
    region: str
    zone: str
    capacity_type: str
    rate: float

    @property
    def least(self) -> float:
        """The cost if everything is already paid for."""
        return self.rate / PAID_FOR_DIVISOR


Fleet = Mapping[BilledKind, int]


@dataclass(frozen=True, slots=True)
class AgreementScope:
    """The machines that an agreement covers; an empty set covers all."""

    provider: str = ""
    regions: frozenset[str] = frozenset()
    zones: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def covers(self, kind: BilledKind) -> bool:
        return (
            self.provider in ("", kind.provider)
            and (not self.regions or kind.region in self.regions)
            and (not self.zones or kind.zone in self.zones)
            and (not self.families or kind.family in self.families)
            and (not self.types or kind.type in self.types)
        )

    def overlaps(self, other: "AgreementScope") -> bool:
        """Whether a machine could be in both scopes."""
        pairs = (
            (self.regions, other.regions),
            (self.zones, other.zones),
            (self.families, other.families),
            (self.types, other.types),
        )
        providers = self.provider == other.provider or not self.provider or not other.provider
        return providers and all(not one or not two or one & two for one, two in pairs)


def pairs_about_the_same(scopes: Sequence[AgreementScope]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of scopes whose types or families may overlap.

    Indexed by type and family, because thousands of reservations cover one type each.
    """
    by_type: dict[str, list[int]] = {}
    by_family: dict[str, list[int]] = {}
    with_types: list[int] = []
    about_all: list[int] = []
    for index, scope in enumerate(scopes):
        if scope.types:
            others = [*about_all, *(one for family in by_family.values() for one in family)]
            others += (one for name in scope.types for one in by_type.get(name, ()))
        elif scope.families:
            others = [*about_all, *with_types]
            others += (one for name in scope.families for one in by_family.get(name, ()))
        else:
            others = list(range(index))
        for before in sorted(set(others)):
            yield index, before
        if scope.types:
            with_types.append(index)
            for name in scope.types:
                by_type.setdefault(name, []).append(index)
        elif scope.families:
            for name in scope.families:
                by_family.setdefault(name, []).append(index)
        else:
            about_all.append(index)


@dataclass(frozen=True, slots=True)
class Term:
    """The time in which an agreement is in force, in seconds since the epoch; the end is exclusive."""

    start: float = -inf
    end: float = inf

    def holds(self, now: float | None) -> bool:
        """Whether it is in force. At an unknown time only an unlimited one is: prices are rather too high."""
        return self == ALWAYS if now is None else self.start <= now < self.end

    def overlaps(self, other: "Term") -> bool:
        return self.start < other.end and other.start < self.end


ALWAYS = Term()


@dataclass(frozen=True, slots=True)
class Discount:
    name: str
    scope: AgreementScope
    fraction: float  # of the list price
    capacity_types: frozenset[str] = frozenset((ON_DEMAND,))
    term: Term = ALWAYS


@dataclass(frozen=True, slots=True)
class Commitment:
    """A commitment. `fraction` is the discount of its own rate; only dollars have one."""

    name: str
    kind: CommitmentKind
    scope: AgreementScope
    unit: CommitmentUnit
    amount: float
    fraction: float = 0.0
    per_hour: float = 0.0  # the price of all of it
    used_elsewhere: float = 0.0  # used by clusters that are not seen here
    term: Term = ALWAYS
    place: BilledKind | None = None  # how a slot of reserved capacity is billed: by the list, or `per_hour`
    is_targeted: bool = False  # only machines that were launched into it fill its slots

    @property
    def here(self) -> float:
        """The amount that is left for this cluster."""
        return max(self.amount - self.used_elsewhere, 0.0)

    def draws(self, kind: BilledKind) -> float:
        """Return how much of it one machine uses; 0 if none."""
        if self.place is not None or kind.capacity_type != ON_DEMAND or not self.scope.covers(kind):
            return 0.0
        if self.unit is CommitmentUnit.MACHINES:
            return 1.0
        return kind.cpus if self.unit is CommitmentUnit.CPUS else kind.rate * (1 - self.fraction)

    def fills(self, kind: BilledKind) -> bool:
        """Whether a machine automatically takes an empty slot of reserved capacity."""
        is_open = not self.is_targeted and kind.capacity_type == ON_DEMAND
        return self.place is not None and is_open and self.scope.covers(kind)

    def filled_places(self, fleet: Fleet) -> tuple[float, dict[BilledKind, float]]:
        """Return the number of empty slots, and the machines that fill the others.

        Machines with the capacity type reserved were launched into it, and are not billed.
        """
        left = self.here - sum(
            count
            for kind, count in fleet.items()
            if count > 0 and kind.capacity_type == RESERVED and self.scope.covers(kind)
        )
        machines: dict[BilledKind, float] = {}
        for kind in sorted(kind for kind, count in fleet.items() if count > 0 and self.fills(kind)):
            if left > 0:
                machines[kind] = min(float(fleet[kind]), left)
                left -= machines[kind]
        return max(left, 0.0), machines


@dataclass(frozen=True, slots=True)
class CommitmentUse:
    name: str
    used: float
    amount: float
    unit: str


@dataclass(frozen=True, slots=True)
class ContractBill:
    """A bill in USD per hour: the cost beyond commitments, the commitments, and their use."""

    beyond: float
    committed: float
    uses: tuple[CommitmentUse, ...] = ()

    @property
    def per_hour(self) -> float:
        return self.beyond + self.committed


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Where clusters under a contract publish their use. Without a kubeconfig, kubectl's default is used."""

    namespace: str
    kubeconfig: str = ""
    context: str = ""


@dataclass(frozen=True)
class Contract:
    discounts: tuple[Discount, ...] = ()
    commitments: tuple[Commitment, ...] = ()  # in the order in which they are used
    elsewhere: Mapping[str, Fleet] = field(default_factory=dict)  # by cluster, as far as written
    prices_from: PriceSource = NOT_LEARNT
    shared_by: frozenset[str] = frozenset()  # all clusters under it, if written
    shared_in: MeetingPlace | None = None
    _drawing: dict[BilledKind, tuple[tuple[int, float], ...]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def __bool__(self) -> bool:
        return bool(self.discounts or self.commitments or self.prices_from)

    def at(self, now: float | None) -> "Contract":
        """Return the contract in force at a time; itself if nothing starts or ends."""
        discounts = tuple(discount for discount in self.discounts if discount.term.holds(now))
        commitments = tuple(commitment for commitment in self.commitments if commitment.term.holds(now))
        if (discounts, commitments) == (self.discounts, self.commitments):
            return self
        return replace(self, discounts=discounts, commitments=commitments, _drawing={})

    def changes_after(self, now: float) -> float:
        """Return when an agreement next starts or ends; infinite for never."""
        terms = [
            *(discount.term for discount in self.discounts),
            *(commitment.term for commitment in self.commitments),
        ]
        moments = [moment for term in terms for moment in (term.start, term.end) if moment > now]
        return min(moments, default=inf)

    def is_about(self, kind: BilledKind) -> bool:
        """Whether the cost of a machine depends on others: it uses a commitment or fills a slot."""
        return bool(self._draws(kind)) or any(
            commitment.place is not None and commitment.scope.covers(kind) for commitment in self.commitments
        )

    def rate(self, listed: BilledKind) -> float:
        """Return the discounted rate of a machine at its list price."""
        for discount in self.discounts:
            if listed.capacity_type in discount.capacity_types and discount.scope.covers(listed):
                return listed.rate * (1 - discount.fraction)
        return listed.rate

    def bill(self, fleet: Fleet) -> ContractBill:
        left, beyond = self._drawn(fleet)
        uses = tuple(
            CommitmentUse(commitment.name, commitment.here - rest, commitment.here, commitment.unit.value)
            for commitment, rest in zip(self.commitments, left, strict=True)
        )
        # The slots of reserved capacity are billed like machines, so their cost is not added again.
        paid = fsum(commitment.per_hour for commitment in self.commitments if commitment.place is None)
        return ContractBill(beyond, paid, uses)

    def beyond(self, fleet: Fleet) -> float:
        """Return the hourly cost of a fleet beyond its commitments."""
        return self._drawn(fleet)[1]

    def headroom(self, fleet: Fleet) -> tuple[float, ...]:
        """Return what a fleet leaves of each commitment."""
        return tuple(self._drawn(fleet)[0])

    def added(self, kind: BilledKind, headroom: Iterable[float]) -> float:
        """Return the cost of one more machine, given what is left of the commitments."""
        uncovered, left = 1.0, tuple(headroom)
        for commitment, rest in zip(self.commitments, left, strict=True):
            if commitment.place is not None and rest >= 1 and commitment.fills(kind):
                return kind.least  # the slot is already billed
        for index, needs in self._draws(kind):
            uncovered -= min(uncovered, left[index] / needs)
        return max(kind.rate * (uncovered if uncovered > _NOTHING else 0.0), kind.least)

    def prices(self, fleet: Fleet) -> dict[BilledKind, float]:
        """Return what each machine of a fleet adds to the bill."""
        whole = self.beyond(fleet)
        prices = {}
        for kind in fleet:
            price = kind.rate
            if self._draws(kind) or any(commitment.fills(kind) for commitment in self.commitments):
                smaller = {**fleet, kind: fleet[kind] - 1}
                price = whole - self.beyond(smaller)
            prices[kind] = max(price, kind.least)
        return prices

    def _draws(self, kind: BilledKind) -> tuple[tuple[int, float], ...]:
        """Return the commitments that a machine uses, by index, and how much of each."""
        drawing = self._drawing.get(kind)
        if drawing is None:
            pairs = ((index, commitment.draws(kind)) for index, commitment in enumerate(self.commitments))
            drawing = self._drawing[kind] = tuple((index, needs) for index, needs in pairs if needs > 0)
        return drawing

    def _drawn(self, fleet: Fleet) -> tuple[list[float], float]:
        """Return what is left of each commitment, and the cost beyond them."""
        left = [commitment.here for commitment in self.commitments]
        billed = {kind: float(count) for kind, count in fleet.items() if count > 0}
        for index, commitment in enumerate(self.commitments):
            if commitment.place is not None:
                left[index], filling = commitment.filled_places(fleet)
                for kind, machines in filling.items():
                    billed[kind] -= machines
                place = commitment.place
                if not commitment.per_hour:
                    place = replace(place, rate=self.rate(place))
                billed[place] = billed.get(place, 0.0) + commitment.here
        uncovered = dict(sorted(billed.items()))
        for index in range(len(left)):
            for kind, machines in uncovered.items():
                if machines <= 0 or left[index] <= _NOTHING:
                    continue
                needs = next((needs for position, needs in self._draws(kind) if position == index), 0.0)
                if needs:
                    covered = min(machines, left[index] / needs)
                    left[index] -= covered * needs
                    uncovered[kind] = machines - covered if machines - covered > _NOTHING else 0.0
        return left, fsum(kind.rate * machines for kind, machines in uncovered.items())
