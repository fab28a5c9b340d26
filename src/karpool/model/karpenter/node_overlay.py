"""Karpenter's NodeOverlays: other prices and more extended resources for some instance types of pools.

They are read from the largest weight to the smallest; of equal weights, the later name comes first. The first
matching overlay sets the price of an offering. Extended resources are merged; the first overlay wins for each
resource. An overlay that sets the same thing as another of the same weight conflicts with it and is ignored.
Karpenter reports this in a condition and continues; here the affected pools are closed as well, because it is
unclear which of the two was meant.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from karpool.model import resources
from karpool.model.catalogue.catalogue import InstanceType, Offering
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL
from karpool.model.kubernetes.meta import Int32, Labels, SelectorRequirement, Wire, WireObject
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.requirements import Requirements, ValueSet, combined, value_set
from karpool.model.resources import Resources

_PRICE = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?\Z")
_ADJUSTMENT = re.compile(r"(?P<sign>[+-])(?P<amount>[0-9]{0,12}\.?[0-9]{1,12})(?P<percent>%?)\Z")
_WEIGHTS = range(1, 10_001)
_REQUIREMENTS_MAX = 100
# An overlay only adds to the machine; the machine's own resources belong to the provider.
_OF_THE_MACHINE = ("cpu", "memory", "ephemeral-storage", "pods")


class NodeOverlaySpec(Wire, frozen=True):
    requirements: list[SelectorRequirement] | None = None
    price: str | None = None
    price_adjustment: str | None = None
    capacity: QuantityMap | None = None
    weight: Int32 | None = None


class NodeOverlay(WireObject, frozen=True):
    spec: NodeOverlaySpec = NodeOverlaySpec()


@dataclass(frozen=True, slots=True)
class PriceChange:
    """`amount` replaces the price, or is added to it, or is added as a share of it."""

    amount: float
    is_added: bool = False
    is_share: bool = False

    def of(self, price: float | None) -> float | None:
        """Return the changed price; an addition to an unknown price stays unknown."""
        if not self.is_added:
            return self.amount
        if price is None:
            return None
        return max(0.0, price * (1.0 + self.amount) if self.is_share else price + self.amount)


@dataclass(frozen=True, slots=True)
class CompiledOverlay:
    name: str
    weight: int = 0
    requirements: Requirements = field(default_factory=dict)
    price: PriceChange | None = None
    capacity: Resources = field(default_factory=dict)

    def offerings(self, pool: str, pool_labels: Labels, candidate: InstanceType) -> Iterator[Offering]:
        """Yield the offerings of a type in a pool that it applies to, if any."""
        for key, values in self.requirements.items():
            fixed = {NODEPOOL: pool, INSTANCE_TYPE: candidate.name}.get(key, pool_labels.get(key))
            offered = candidate.requirements.get(key)
            if fixed is not None:
                only = ValueSet(frozenset((fixed,)))
                offered = only if offered is None else only & offered
            if not (values.admits_absence if offered is None else offered.intersects(values)):
                return
        zones, kinds = self.requirements.get(ZONE), self.requirements.get(CAPACITY_TYPE)
        for offering in candidate.offerings:
            if (zones is None or offering.zone in zones) and (
                kinds is None or offering.capacity_type in kinds
            ):
                yield offering


def overlay_of(overlay: NodeOverlay) -> CompiledOverlay:
    """Compile an overlay. Raises Invalid, which names the field."""
    spec = overlay.spec
    if spec.price is not None and spec.price_adjustment is not None:
        raise Invalid("spec.priceAdjustment", spec.price_adjustment, "contradicts spec.price; keep one")
    if spec.weight is not None and spec.weight not in _WEIGHTS:
        raise Invalid("spec.weight", spec.weight, "must be from 1 to 10000")
    return CompiledOverlay(
        overlay.name,
        spec.weight or 0,
        requirements_of(spec),
        _price(spec),
        _capacity(spec.capacity or {}),
    )


def requirements_of(spec: NodeOverlaySpec) -> Requirements:
    """Return its requirements. Raises Invalid."""
    entries = spec.requirements or ()
    if len(entries) > _REQUIREMENTS_MAX:
        raise Invalid("spec.requirements", len(entries), f"must not be more than {_REQUIREMENTS_MAX}")
    requirements: Requirements = {}
    for index, entry in enumerate(entries):
        try:
            requirements = combined(requirements, {entry.key: value_set(entry.operator, entry.values or ())})
        except Invalid as error:
            raise error.at(f"spec.requirements[{index}]") from None
    return requirements


def _price(spec: NodeOverlaySpec) -> PriceChange | None:
    if spec.price is not None:
        if _PRICE.match(spec.price) is None:
            raise Invalid("spec.price", spec.price, "must be USD per hour, like 0.25")
        return PriceChange(float(spec.price))
    if spec.price_adjustment is None:
        return None
    match = _ADJUSTMENT.match(spec.price_adjustment)
    amount = float(match["amount"]) if match is not None else 0.0
    if match is None or (match["percent"] and match["sign"] == "-" and amount > 100.0):
        raise Invalid("spec.priceAdjustment", spec.price_adjustment, "must be like -0.5, +0.1, -15% or +10%")
    signed = -amount if match["sign"] == "-" else amount
    share = bool(match["percent"])
    return PriceChange(signed / 100.0 if share else signed, is_added=True, is_share=share)


def _capacity(quantities: QuantityMap) -> Resources:
    for name in quantities:
        if name in _OF_THE_MACHINE:
            raise Invalid(
                f"spec.capacity.{name}", quantities[name], "cannot be overlaid; only extended resources can"
            )
    try:
        capacity = resources.parse(quantities)
    except Invalid as error:
        raise error.at("spec.capacity") from None
    for name, units in capacity.items():
        if units < 0:
            raise Invalid(f"spec.capacity.{name}", quantities[name], "must not be negative")
    return capacity


def _requirements_if_readable(spec: NodeOverlaySpec) -> Requirements:
    """Return its requirements; if they cannot be read, it may apply to every type."""
    try:
        return requirements_of(spec)
    except Invalid:
        return {}


@dataclass(frozen=True)
class OverlaidTypes:
    """The effect of all overlays. `closed` are pools whose prices are unclear, and why."""

    prices: Mapping[tuple[str, str], Mapping[tuple[str, str], PriceChange]]  # pool, type; zone, capacity type
    capacity: Mapping[tuple[str, str], Resources]
    closed: Mapping[str, str]

    def applied(self, pool: str, candidate: InstanceType) -> InstanceType:
        prices, more = self.prices.get((pool, candidate.name)), self.capacity.get((pool, candidate.name))
        if prices:
            offerings = tuple(
                msgspec.structs.replace(offering, price_per_hour=change.of(offering.price_per_hour))
                if (change := prices.get((offering.zone, offering.capacity_type))) is not None
                else offering
                for offering in candidate.offerings
            )
            candidate = replace(candidate, offerings=offerings)
        if more:
            candidate = replace(
                candidate,
                capacity={**candidate.capacity, **more},
                allocatable={**candidate.allocatable, **more},
            )
        return candidate


def evaluated(
    overlays: Iterable[CompiledOverlay], pools: Mapping[str, Labels], types: Iterable[InstanceType]
) -> OverlaidTypes:
    """Evaluate overlays over all pools: an overlay with a conflict in one pool is ignored in all."""
    evaluation, closed, instance_types = _Evaluation(), dict[str, str](), list(types)
    by_name = sorted(overlays, key=lambda overlay: overlay.name, reverse=True)
    for overlay in sorted(by_name, key=lambda overlay: -overlay.weight):
        about = {
            (pool, candidate.name): offerings
            for pool, labels in pools.items()
            for candidate in instance_types
            if (offerings := tuple(overlay.offerings(pool, labels, candidate)))
        }
        rivals = {
            key[0]: rival
            for key, offerings in about.items()
            for rival in evaluation.rivals(overlay, key, offerings)
        }
        for pool, rival in rivals.items():
            closed.setdefault(
                pool,
                f"NodeOverlays {overlay.name} and {rival} have the same weight and speak of the same types; "
                f"give one of them another spec.weight",
            )
        for key, offerings in about.items() if not rivals else ():
            evaluation.add(overlay, key, offerings)
    return OverlaidTypes(evaluation.prices, evaluation.capacity, closed)


_Key = tuple[str, str]  # pool, type


class _Evaluation:
    def __init__(self) -> None:
        self.prices: dict[_Key, dict[tuple[str, str], PriceChange]] = {}
        self.capacity: dict[_Key, Resources] = {}
        self._priced_by: dict[tuple[str, str, str, str], CompiledOverlay] = {}  # the last overlay that set it
        self._sized_by: dict[_Key, CompiledOverlay] = {}

    def rivals(self, overlay: CompiledOverlay, key: _Key, offerings: Iterable[Offering]) -> Iterator[str]:
        """Yield the overlays of the same weight that set the same thing."""
        for offering in offerings if overlay.price is not None else ():
            before = self._priced_by.get((*key, offering.zone, offering.capacity_type))
            if before is not None and before.weight == overlay.weight:
                yield before.name
        before = self._sized_by.get(key)
        if before is None or before.weight != overlay.weight:
            return
        if before.capacity.keys() & overlay.capacity.keys():
            yield before.name

    def add(self, overlay: CompiledOverlay, key: _Key, offerings: Iterable[Offering]) -> None:
        if overlay.price is not None:
            for offering in offerings:
                place = offering.zone, offering.capacity_type
                self.prices.setdefault(key, {}).setdefault(place, overlay.price)
                self._priced_by[*key, *place] = overlay
        if overlay.capacity:
            self.capacity[key] = {**overlay.capacity, **self.capacity.get(key, {})}
            self._sized_by[key] = overlay


_ANY: Requirements = {}


class NodeOverlays:
    """All overlays of a cluster, kept current. `version` increases with every change."""

    def __init__(self) -> None:
        self.version = 0
        self.problems: dict[str, str] = {}  # overlays that cannot be read, and why
        self._overlays: dict[str, CompiledOverlay] = {}
        self._broken: dict[str, CompiledOverlay] = {}  # the unreadable ones, with the scope that is known
        self._pools: dict[str, Labels] = {}
        # By the identity of the types, which are kept, since an id may be reused.
        self._latest: dict[int, tuple[object, tuple[int, int], OverlaidTypes]] = {}

    def __bool__(self) -> bool:
        return bool(self._overlays or self.problems)

    def put(self, overlay: NodeOverlay) -> None:
        name = overlay.name
        self.drop(name)
        try:
            self._overlays[name] = overlay_of(overlay)
        except Invalid as error:
            self.unreadable(name, str(error), _requirements_if_readable(overlay.spec))

    def unreadable(self, name: str, why: str, requirements: Requirements = _ANY) -> None:
        self.drop(name)
        self.problems[name] = why
        self._broken[name] = CompiledOverlay(name, requirements=requirements)

    def drop(self, name: str) -> None:
        self.version += 1
        for kept in (self._overlays, self._broken, self.problems):
            kept.pop(name, None)

    def see_pool(self, name: str, labels: Labels | None) -> None:
        """Set the labels of a pool's template; None: the pool is deleted."""
        if self._pools.get(name) != labels:
            self.version += 1
            if labels is None:
                del self._pools[name]
            else:
                self._pools[name] = labels

    def types(self, instance_types: Mapping[str, InstanceType], version: int) -> OverlaidTypes:
        """Return the overlays evaluated for the types of a catalogue of this version."""
        key = self.version, version
        latest = self._latest.get(id(instance_types))
        if latest is None or latest[0] is not instance_types or latest[1] != key:
            effects = evaluated(self._overlays.values(), self._pools, instance_types.values())
            closed = {**self._touched(instance_types), **effects.closed}
            latest = self._latest[id(instance_types)] = instance_types, key, replace(effects, closed=closed)
        return latest[2]

    def _touched(self, instance_types: Mapping[str, InstanceType]) -> dict[str, str]:
        """Return the pools that an unreadable overlay may apply to, and why."""
        return {
            pool: f"NodeOverlay {name} cannot be understood: {self.problems[name]}"
            for name, overlay in self._broken.items()
            for pool, labels in self._pools.items()
            if any(any(overlay.offerings(pool, labels, candidate)) for candidate in instance_types.values())
        }
