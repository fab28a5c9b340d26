"""Catalogues as files: the one that is shipped, and those that users write.

Two formats, told apart by their `format` field, both documented in docs/catalogue.md:
packed columns for several regions of one provider (what `tools/build_catalogue.py`
writes), and a list of types to write by hand, in YAML or JSON. Either may be gzipped.
Whatever is wrong with a file is one Invalid that names the place and the value.
"""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from karpool.model import resources, safe_yaml
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering, PriceList, checked_price
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Wire, decode
from karpool.model.kubernetes.node import INSTANCE_TYPE, REGION
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.labels import check_key, check_value
from karpool.model.requirements import ValueSet
from karpool.model.resources import Resources

PACKED = "karpool-packed-catalogue/1"
READABLE = "karpool-catalogue/1"

_KARPENTER_AWS = "karpenter.k8s.aws/"
_AUTO_MODE = "eks.amazonaws.com/"
_FILE_MAX = 64 * 2**20


class PackedLabel(Wire, frozen=True):
    """One label of all types: the values that occur, and which of them each type has (-1: none)."""

    values: list[str]
    of: list[int]


class PackedRegion(Wire, frozen=True):
    types: list[int]  # positions in the list of names
    zone_ids: list[str]
    zone_names: list[str]
    on_demand: list[float | None]
    spot: dict[str, list[float | None]]  # by zone id
    spot_median: list[float | None]
    on_demand_as_of: str = ""
    spot_as_of: str = ""


class PackedCatalogue(Wire, frozen=True):
    format: str
    provider: str
    names: list[str]
    labels: dict[str, PackedLabel]
    capacity: dict[str, list[int]]  # milli-CPU, bytes, counts; 0 where the type has none
    allocatable: dict[str, list[int]]
    regions: dict[str, PackedRegion]
    sources: list[str] | None = None


class ReadableOffering(Wire, frozen=True):
    zones: list[str]
    capacity_type: str
    price_per_hour: float | None = None
    available: bool = True


class ReadableType(Wire, frozen=True):
    name: str
    capacity: QuantityMap
    allocatable: QuantityMap | None = None
    labels: dict[str, str] | None = None
    offerings: list[ReadableOffering] | None = None


class ReadableCatalogue(Wire, frozen=True):
    format: str
    provider: str
    region: str
    types: list[ReadableType]
    as_of: str = ""


def shipped_regions() -> tuple[str, ...]:
    return tuple(_shipped().regions)


def shipped_zones(region: str) -> tuple[str, ...]:
    """The usual names of a region's zones; raises KeyError for a region that is not in it."""
    return tuple(_shipped().regions[region].zone_names)


def load_shipped(
    region: str, *, zones: Mapping[str, str | None] | None = None, auto_mode: bool = False
) -> Catalogue:
    """The AWS catalogue that comes with the package, for one region.

    `zones` names the zones of the cluster and gives the provider's id of each (None: not known);
    without it the usual names are taken, with no ids. `auto_mode` names the labels as EKS Auto
    Mode does. Raises Invalid for a region that is not in it.
    """
    return unpack(_shipped(), region, zones=zones, auto_mode=auto_mode)


@cache
def _shipped() -> PackedCatalogue:
    """Kept: it is a few megabytes, and is asked for region by region."""
    data = files("karpool.model").joinpath("data/aws.json.gz").read_bytes()
    return msgspec.json.decode(_inflated(data), type=PackedCatalogue)


def read_catalogue(
    data: bytes, region: str = "", *, zones: Mapping[str, str | None] | None = None
) -> Catalogue:
    """A catalogue file in either format. `region` chooses from a packed file with several.

    With `zones`, only what is sold in these.
    """
    raw = _decoded(data)
    kind = raw.get("format") if isinstance(raw, dict) else None
    if kind == PACKED:
        packed = decode(raw, PackedCatalogue)
        if not region and len(packed.regions) == 1:
            region = next(iter(packed.regions))
        return unpack(packed, region, zones=zones)
    if kind == READABLE:
        return _from_readable(decode(raw, ReadableCatalogue), zones)
    raise Invalid("format", kind, f"must be {READABLE} or {PACKED}; see docs/catalogue.md")


def _decoded(data: bytes) -> Any:
    text = _inflated(data) if data[:2] == b"\x1f\x8b" else data
    if len(text) > _FILE_MAX:
        raise Invalid("", f"{len(text)} bytes", "is larger than 64 MiB")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        documents = list(safe_yaml.load_documents(text, size_limit=_FILE_MAX))
    except safe_yaml.UnusableYaml as error:
        raise Invalid("", text[:40], f"is neither JSON nor YAML: {error}") from None
    if len(documents) != 1:
        raise Invalid("", text[:40], "must be one document")
    return documents[0]


def _inflated(data: bytes) -> bytes:
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = reader.decompress(data, _FILE_MAX)
    except zlib.error as error:
        raise Invalid("", data[:16], f"is not a complete gzip file: {error}") from None
    if not reader.eof:
        raise Invalid("", f"{len(data)} bytes", "is cut short, or larger than 64 MiB when unpacked")
    return text


def unpack(
    packed: PackedCatalogue,
    region: str,
    *,
    zones: Mapping[str, str | None] | None = None,
    auto_mode: bool = False,
) -> Catalogue:
    chosen = packed.regions.get(region)
    if chosen is None:
        regions = ", ".join(packed.regions)
        raise Invalid(
            "region", region, f"is not in the catalogue, which has {regions}; give one with --catalogue"
        )
    _check_columns(packed, chosen, f"regions.{region}")
    names = [packed.names[position] for position in chosen.types]
    return Catalogue(
        packed.provider,
        region,
        _types(packed, chosen, region, auto_mode),
        as_of=f"on-demand {chosen.on_demand_as_of}, spot {chosen.spot_as_of}",
        prices=_prices(names, chosen),
        zones=dict.fromkeys(chosen.zone_names) if zones is None else zones,
    )


def _check_columns(packed: PackedCatalogue, region: PackedRegion, path: str) -> None:
    size, rows = len(packed.names), len(region.types)
    columns: dict[str, tuple[int, int]] = {
        f"{path}.onDemand": (len(region.on_demand), rows),
        f"{path}.spotMedian": (len(region.spot_median), rows),
    }
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
    if region.types and not 0 <= min(region.types) <= max(region.types) < size:
        raise Invalid(f"{path}.types", max(region.types), "points outside the list of names")


_ABSENT = ValueSet()


def _types(
    packed: PackedCatalogue, region: PackedRegion, region_name: str, auto_mode: bool
) -> list[InstanceType]:
    columns = []
    for key, label in packed.labels.items():
        shown = key.replace(_KARPENTER_AWS, _AUTO_MODE) if auto_mode else key
        # One set per value, shared by all types that have it; -1 finds the last, the absence.
        sets = [*(ValueSet(frozenset((value,))) for value in label.values), _ABSENT]
        columns.append((shown, sets, label.of))
    place = ValueSet(frozenset((region_name,)))
    types = []
    for position in region.types:
        requirements = {key: sets[of[position]] for key, sets, of in columns}
        requirements[REGION] = place
        types.append(
            InstanceType(
                packed.names[position],
                requirements,
                _row(packed.capacity, position),
                _row(packed.allocatable, position),
            )
        )
    return types


def _row(columns: Mapping[str, list[int]], position: int) -> Resources:
    return {name: units[position] for name, units in columns.items() if units[position]}


def _prices(names: list[str], region: PackedRegion) -> PriceList:
    spot: dict[str, dict[str, float]] = {}
    for zone_id, prices in region.spot.items():
        for name, price in zip(names, prices, strict=True):
            if price is not None:
                spot.setdefault(name, {})[zone_id] = _checked(price, f"{name}.{zone_id}")
    for name, price in zip(names, region.on_demand, strict=True):
        if price is not None:
            _checked(price, name)
    return PriceList(
        zone_ids=tuple(region.zone_ids),
        on_demand=dict(zip(names, region.on_demand, strict=True)),
        spot=spot,
        spot_median=dict(zip(names, region.spot_median, strict=True)),
    )


def _checked(price: float, path: str) -> float:
    try:
        return checked_price(price)
    except Invalid as error:
        raise error.at(path) from None


def _from_readable(readable: ReadableCatalogue, only: Mapping[str, str | None] | None = None) -> Catalogue:
    types: dict[str, InstanceType] = {}
    for index, entry in enumerate(readable.types):
        try:
            if entry.name in types:
                raise Invalid("name", entry.name, "is listed twice")
            types[entry.name] = _readable_type(entry, readable.region)
        except Invalid as error:
            raise error.at(f"types[{index}]") from None
    if only is not None:
        types = {
            name: instance_type.sold_as(
                [offering for offering in instance_type.offerings if offering.zone in only]
            )
            for name, instance_type in types.items()
        }
    keys = {key for instance_type in types.values() for key in instance_type.requirements}
    absent = dict.fromkeys(sorted(keys), _ABSENT)
    zones = {offering.zone: None for instance_type in types.values() for offering in instance_type.offerings}
    return Catalogue(
        readable.provider,
        readable.region,
        (
            replace(instance_type, requirements={**absent, **instance_type.requirements})
            for instance_type in types.values()
        ),
        as_of=readable.as_of,
        zones=dict(sorted(zones.items())),
    )


def _readable_type(entry: ReadableType, region: str) -> InstanceType:
    labels = {**(entry.labels or {}), INSTANCE_TYPE: entry.name, REGION: region}
    for key, value in labels.items():
        try:
            check_key(key)
            check_value(value)
        except Invalid as error:
            raise error.at(f"labels.{key}") from None
    capacity = _amounts(entry.capacity, "capacity")
    offerings: list[Offering] = []
    for index, offering in enumerate(entry.offerings or ()):
        try:
            offerings += (
                Offering(zone, offering.capacity_type, offering.price_per_hour, offering.available)
                for zone in offering.zones
            )
        except Invalid as error:
            raise error.at(f"offerings[{index}]") from None
    return InstanceType(
        entry.name,
        {key: ValueSet(frozenset((value,))) for key, value in labels.items()},
        capacity,
        capacity if entry.allocatable is None else _amounts(entry.allocatable, "allocatable"),
    ).sold_as(offerings)


def _amounts(raw: QuantityMap, path: str) -> Resources:
    try:
        amounts = resources.parse(raw)
    except Invalid as error:
        raise error.at(path) from None
    for name, units in amounts.items():
        if units < 0:
            raise Invalid(f"{path}.{name}", raw[name], "must not be negative")
    return amounts
