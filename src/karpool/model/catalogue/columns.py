"""Types and prices as columns: the storage format of a provider's catalogue.

Columns have one entry per type. The structs are those of the shipped files, and of packed files that users
pass; `unpack` creates the Catalogue of one region.
"""

from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from karpool.model.catalogue.catalogue import (
    Catalogue,
    InstanceType,
    PriceList,
    TypeGpu,
    TypeTable,
    checked_price,
)
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.meta import Wire
from karpool.model.kubernetes.node import REGION, ZONE
from karpool.model.requirements import ValueSet
from karpool.model.resources import CPU, Resources

_KARPENTER_AWS = "karpenter.k8s.aws/"
_AUTO_MODE = "eks.amazonaws.com/"
ABSENT = ValueSet()


class PackedLabel(Wire, frozen=True):
    """One label of all types: its distinct values, and the index of the value of each type (-1: none)."""

    values: list[str]
    of: list[int]


class PackedGpus(Wire, frozen=True):
    """The GPUs of `types` (indexes into the list of names). A partition is a share of a whole device."""

    types: list[int]
    models: list[str]
    memory_mib: list[int]
    partition: list[float]


class PackedTypes(Wire, frozen=True):
    names: list[str]
    labels: dict[str, PackedLabel]
    capacity: dict[str, list[int]]  # milli-CPU, bytes, counts; 0 if the type has none
    allocatable: dict[str, list[int]]
    gpus: PackedGpus | None = None


class PackedRegion(Wire, frozen=True):
    """One region. Without `sold`, a type is sold in the zones with a spot price for it, or everywhere."""

    types: list[int]  # indexes into the list of names
    zone_ids: list[str]
    zone_names: list[str]
    on_demand: list[float | None]
    spot: dict[str, list[float | None]]  # by zone id
    spot_median: list[float | None]
    sold: list[list[int]] | None = None  # indexes into zone_ids; none: unknown
    retired: list[int] | None = None  # indexes into types that still run but are no longer sold
    on_demand_as_of: str = ""
    spot_as_of: str = ""


class ShippedRegion(msgspec.Struct, frozen=True):
    place: tuple[int, int]
    zone_names: list[str]
    on_demand_as_of: str
    spot_as_of: str


class ShippedIndex(msgspec.Struct, frozen=True):
    """The index of a shipped file. A place is offset and length of a section, from the end of the index."""

    provider: str
    types: tuple[int, int]
    regions: dict[str, ShippedRegion]


def unpack(
    provider: str,
    packed: PackedTypes,
    name: str,
    region: PackedRegion,
    *,
    zones: Mapping[str, str | None] | None = None,
    auto_mode: bool = False,
) -> Catalogue:
    _check_columns(packed, region, f"regions.{name}")
    names = [packed.names[position] for position in region.types]
    return Catalogue(
        provider,
        name,
        _types(packed, region, name, auto_mode),
        label_keys=frozenset((*_shown_keys(packed, auto_mode), REGION, ZONE, CAPACITY_TYPE)),
        as_of=f"on-demand {region.on_demand_as_of or 'unknown'}, spot {region.spot_as_of or 'unknown'}",
        prices=_prices(names, region),
        zones=_usual_zones(region) if zones is None else zones,
        open_zones=zones is None,
    )


def _usual_zones(region: PackedRegion) -> dict[str, str | None]:
    """Return zone names to IDs; if zones are named by their ID, nothing has to be learnt."""
    return {name: name if name in region.zone_ids else None for name in region.zone_names}


def _check_columns(packed: PackedTypes, region: PackedRegion, path: str) -> None:
    size, rows = len(packed.names), len(region.types)
    columns: dict[str, tuple[int, int]] = {
        f"{path}.onDemand": (len(region.on_demand), rows),
        f"{path}.spotMedian": (len(region.spot_median), rows),
    }
    if region.sold is not None:
        columns[f"{path}.sold"] = len(region.sold), rows
        _check_positions(f"{path}.sold", [zone for zones in region.sold for zone in zones], region.zone_ids)
    columns |= {f"{path}.spot.{zone}": (len(prices), rows) for zone, prices in region.spot.items()}
    columns |= {f"labels.{key}.of": (len(label.of), size) for key, label in packed.labels.items()}
    for part in ("capacity", "allocatable"):
        columns |= {f"{part}.{name}": (len(units), size) for name, units in getattr(packed, part).items()}
    for column, (length, expected) in columns.items():
        if length != expected:
            raise Invalid(column, length, f"must have one entry per type, that is {expected}")
    for key, label in packed.labels.items():
        if label.of and not -1 <= min(label.of) <= max(label.of) < len(label.values):
            raise Invalid(f"labels.{key}.of", max(label.of), "points outside the values of the label")
    _check_positions(f"{path}.types", region.types, packed.names)
    _check_positions(f"{path}.retired", region.retired or (), region.types)
    if (gpus := packed.gpus) is not None:
        _check_positions("gpus.types", gpus.types, packed.names)
        for column, values in (("models", gpus.models), ("memoryMib", gpus.memory_mib)):
            if len(values) != len(gpus.types):
                raise Invalid(f"gpus.{column}", len(values), f"must have {len(gpus.types)} entries")
        if len(gpus.partition) != len(gpus.types):
            raise Invalid("gpus.partition", len(gpus.partition), f"must have {len(gpus.types)} entries")


def _check_positions(path: str, positions: Sequence[int], of: Sequence[object]) -> None:
    if positions and not 0 <= min(positions) <= max(positions) < len(of):
        raise Invalid(path, max(positions), f"points outside a list of {len(of)}")


def _shown_keys(packed: PackedTypes, auto_mode: bool) -> list[str]:
    return [key.replace(_KARPENTER_AWS, _AUTO_MODE) if auto_mode else key for key in packed.labels]


def _types(packed: PackedTypes, region: PackedRegion, region_name: str, auto_mode: bool) -> TypeTable:
    # One set per value, shared by all types that have it; -1 finds the last, the absence.
    columns = [
        (key, [*(ValueSet(frozenset((value,))) for value in label.values), ABSENT], label.of)
        for key, label in zip(_shown_keys(packed, auto_mode), packed.labels.values(), strict=True)
    ]
    place = ValueSet(frozenset((region_name,)))
    gpus = _gpus(packed)
    sizes = packed.capacity.get(CPU)
    # A type of unpublished size has a price, and its shape is learnt from nodes.
    positions = {
        packed.names[position]: position for position in region.types if sizes is None or sizes[position]
    }

    def make(name: str) -> InstanceType:
        position = positions[name]
        requirements = {key: sets[of[position]] for key, sets, of in columns}
        requirements[REGION] = place
        return InstanceType(
            name,
            requirements,
            _row(packed.capacity, position),
            _row(packed.allocatable, position),
            gpu=gpus.get(position),
        )

    return TypeTable(positions, make)


def _gpus(packed: PackedTypes) -> dict[int, TypeGpu]:
    gpus = packed.gpus
    if gpus is None:
        return {}
    rows = zip(gpus.types, gpus.models, gpus.memory_mib, gpus.partition, strict=True)
    return {position: TypeGpu(model, memory, partition) for position, model, memory, partition in rows}


def _row(columns: Mapping[str, list[int]], position: int) -> Resources:
    return {name: units[position] for name, units in columns.items() if units[position]}


def _prices(names: list[str], region: PackedRegion) -> PriceList:
    _check_prices(names, region.on_demand, "")
    _check_prices(names, region.spot_median, "")
    spot: dict[str, dict[str, float]] = {}
    for zone_id, prices in region.spot.items():
        _check_prices(names, prices, f".{zone_id}")
        for name, price in zip(names, prices, strict=True):
            if price is not None:
                spot.setdefault(name, {})[zone_id] = price
    if region.sold is None:
        sold = {name: frozenset(zones) for name, zones in spot.items()}
    else:
        sets: dict[tuple[int, ...], frozenset[str]] = {}
        sold = {}
        for name, positions in zip(names, region.sold, strict=True):
            if positions:
                key = tuple(positions)
                if key not in sets:
                    sets[key] = frozenset(region.zone_ids[position] for position in positions)
                sold[name] = sets[key]
    return PriceList(
        zone_ids=tuple(region.zone_ids),
        on_demand=dict(zip(names, region.on_demand, strict=True)),
        spot=spot,
        spot_median=dict(zip(names, region.spot_median, strict=True)),
        sold=sold,
        retired=frozenset(names[position] for position in region.retired or ()),
    )


def _check_prices(names: list[str], prices: Sequence[float | None], ending: str) -> None:
    """Check all prices without a call per price: there are tens of thousands."""
    wrong = [
        (name, price)
        for name, price in zip(names, prices, strict=True)
        if price is not None and not 0 <= price < inf
    ]
    for name, price in wrong:
        try:
            checked_price(price)
        except Invalid as error:
            raise error.at(f"{name}{ending}") from None
