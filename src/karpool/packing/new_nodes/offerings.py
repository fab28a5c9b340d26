"""What one pool may launch, as columns over instance types.

Compiled once per pool and catalogue version: the types and offerings that the requirements of the pool admit,
their sizes and prices. An unknown price is infinite here, so that it sorts last and never mixes with known
prices; nothing is estimated.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from karpool.model.catalogue.catalogue import Catalogue, InstanceType
from karpool.model.contracts.contracted_prices import ContractedPrices
from karpool.model.karpenter.node_overlay import NodeOverlays
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL, CompiledPool
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.quantity import INT64_MAX
from karpool.model.requirements import WELL_KNOWN, ValueSet, combined
from karpool.model.resources import ATTACHED_VOLUMES, CPU, MEMORY
from karpool.packing.tables.columns import Bools, Int64s

Prices = npt.NDArray[np.float64]
UNKNOWN_PRICE = float("inf")
# A quarter of int64, so that sums of a few cannot overflow; no node has this much of any resource.
MOST = INT64_MAX // 4
TOO_MUCH = MOST + 1
# Decided by the offering, not by the type.
OFFERING_KEYS = frozenset((ZONE, CAPACITY_TYPE))


@dataclass(frozen=True, slots=True)
class StockOut:
    """An offering that is not available at present; None matches any value."""

    instance_type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None


class PoolOfferings:
    """Types are ordered by size, then name. Cubes are indexed by type, zone and capacity type."""

    def __init__(self, pool: CompiledPool, types: Iterable[InstanceType], label_keys: frozenset[str]) -> None:
        self.pool = pool
        self.requirements: dict[str, ValueSet] = combined(
            pool.requirements, {NODEPOOL: ValueSet(frozenset((pool.name,)))}
        )
        self.label_keys = (label_keys | {INSTANCE_TYPE}) - OFFERING_KEYS
        self.open_keys = WELL_KNOWN | self.label_keys
        self.refused: dict[str, int] = {}  # requirement of the pool to the number of types that it rules out
        chosen = [instance_type for instance_type in types if self._admits(instance_type)]
        self.types = sorted(chosen, key=lambda instance_type: (*_size(instance_type), instance_type.name))
        self.names = [instance_type.name for instance_type in self.types]
        self._masks: dict[tuple[str, ValueSet], Bools] = {}
        self._columns: dict[tuple[str, str], Int64s] = {}
        self._read_offerings()

    def _admits(self, candidate: InstanceType) -> bool:
        for key, value_set in self.requirements.items():
            if key not in OFFERING_KEYS and not self._type_admits(candidate, key, value_set):
                self.refused[key] = self.refused.get(key, 0) + 1
                return False
        return True

    def _type_admits(self, candidate: InstanceType, key: str, value_set: ValueSet) -> bool:
        offered = self.label_of(candidate, key)
        if offered is not None:
            return offered.intersects(value_set)
        # Other types have this label, so a node of this type would lack it.
        return key not in self.label_keys or value_set.admits_absence

    @staticmethod
    def label_of(candidate: InstanceType, key: str) -> ValueSet | None:
        if key == INSTANCE_TYPE and key not in candidate.requirements:
            return ValueSet(frozenset((candidate.name,)))
        return candidate.requirements.get(key)

    def _read_offerings(self) -> None:
        offerings = [(row, offering) for row, one in enumerate(self.types) for offering in one.offerings]
        self.zones = sorted({offering.zone for _, offering in offerings})
        self.capacity_types = sorted({offering.capacity_type for _, offering in offerings})
        zone_of = {zone: code for code, zone in enumerate(self.zones)}
        kind_of = {kind: code for code, kind in enumerate(self.capacity_types)}
        shape = (len(self.types), len(self.zones), len(self.capacity_types))
        self.sold: Bools = np.zeros(shape, dtype=np.bool_)
        self.listed: Bools = np.zeros(shape, dtype=np.bool_)  # offered and in stock by the catalogue
        self.prices: Prices = np.full(shape, UNKNOWN_PRICE)
        zones = self.requirements.get(ZONE)
        kinds = self.requirements.get(CAPACITY_TYPE)
        for row, offering in offerings:
            if zones is not None and offering.zone not in zones:
                continue
            if kinds is not None and offering.capacity_type not in kinds:
                continue
            place = row, zone_of[offering.zone], kind_of[offering.capacity_type]
            self.sold[place] = True
            self.listed[place] |= offering.available
            if offering.price_per_hour is not None:
                self.prices[place] = min(self.prices[place], offering.price_per_hour)

    def stock(self, unavailable: Collection[StockOut]) -> Bools:
        """Return the offerings that are available now."""
        stock = self.listed.copy()
        for out in unavailable:
            picked = tuple(
                slice(None) if value is None else _position(values, value)
                for value, values in (
                    (out.instance_type, self.names),
                    (out.zone, self.zones),
                    (out.capacity_type, self.capacity_types),
                )
            )
            stock[picked] = False
        return stock

    def admitting(self, key: str, value_set: ValueSet) -> Bools:
        """Return the types whose value of a label can satisfy the requirement."""
        mask = self._masks.get((key, value_set))
        if mask is None:
            mask = np.array(
                [self._type_admits(instance_type, key, value_set) for instance_type in self.types],
                dtype=np.bool_,
            )
            self._masks[key, value_set] = mask
        return mask

    def allocatable(self, resource: str) -> Int64s:
        return self._column("allocatable", resource)

    def capacity(self, resource: str) -> Int64s:
        return self._column("capacity", resource)

    def _column(self, kind: str, resource: str) -> Int64s:
        column = self._columns.get((kind, resource))
        if column is None:
            # The volume limit of a new node is unknown beforehand; Karpenter assumes no limit.
            missing = MOST if resource.startswith(ATTACHED_VOLUMES) else 0
            amounts = (getattr(instance_type, kind).get(resource, missing) for instance_type in self.types)
            column = np.array([min(max(units, 0), MOST) for units in amounts], dtype=np.int64)
            self._columns[kind, resource] = column
        return column


def _size(one: InstanceType) -> tuple[int, int]:
    return one.capacity.get(CPU, 0), one.capacity.get(MEMORY, 0)


def _position(values: list[str], value: str) -> slice:
    """Return the index of the value; empty if there is none."""
    if value not in values:
        return slice(0, 0)
    index = values.index(value)
    return slice(index, index + 1)


class Offerings:
    """The offerings of every pool, compiled on demand.

    They are compiled again when the pool, the catalogue or an overlay changes.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        overlays: NodeOverlays | None = None,
        contracted: ContractedPrices | None = None,
        catalogue_of: Callable[[str], Catalogue] | None = None,
    ) -> None:
        """`catalogue_of` returns the catalogue of a pool; a pool that launches elsewhere has its own."""
        self.catalogue = catalogue
        self.catalogue_of: Callable[[str], Catalogue] = catalogue_of or (lambda pool: catalogue)
        self.overlays = overlays if overlays is not None else NodeOverlays()
        self.contracted = contracted if contracted is not None else ContractedPrices()
        self._known: dict[str, tuple[object, CompiledPool, PoolOfferings]] = {}

    @property
    def version(self) -> int:
        """Increases with every change."""
        return self.catalogue.version + self.overlays.version + self.contracted.version

    def for_pool(self, pool: CompiledPool) -> PoolOfferings:
        entry, catalogue = self._known.get(pool.name), self.catalogue_of(pool.name)
        version = self.version, catalogue.region, catalogue.version
        if entry is None or entry[0] != version or entry[1] != pool:
            offerings = PoolOfferings(pool, self._types(pool, catalogue), catalogue.label_keys)
            entry = self._known[pool.name] = (version, pool, offerings)
        return entry[2]

    def _types(self, pool: CompiledPool, catalogue: Catalogue) -> Iterable[InstanceType]:
        types, contracted = catalogue.types, self.contracted
        if not self.overlays:
            if not contracted:
                return types.values()
            return [contracted.applied(catalogue, candidate) for candidate in types.values()]
        self.overlays.see_pool(pool.name, pool.labels)
        overlaid = self.overlays.types(types, catalogue.version)
        applied = [(candidate, overlaid.applied(pool.name, candidate)) for candidate in types.values()]
        if not contracted:
            return [over for _, over in applied]
        return [contracted.applied(catalogue, candidate, over) for candidate, over in applied]


def remaining(limits: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """Return what a pool may still launch; may be negative."""
    return {resource: units - used.get(resource, 0) for resource, units in limits.items()}
