"""Catalogues as files: those that are shipped, and those that users write.

There is one shipped file per provider: an index, then compressed columns of the types and of each region;
only the requested parts are read. Users pass one of two formats, distinguished by the `format` field and
documented in docs/catalogue.md: packed columns for several regions of one provider, and a list of types to
write by hand, in YAML or JSON. Both may be gzipped. An error in a file is one Invalid that names the place
and the value.
"""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.abc import Traversable
from importlib.resources import files
from typing import Annotated, Any

import msgspec

from karpool.model import resources, safe_yaml
from karpool.model.catalogue.catalogue import FAMILY_LABELS, Catalogue, InstanceType, Offering, TypeGpu
from karpool.model.catalogue.columns import (
    ABSENT,
    PackedGpus,
    PackedLabel,
    PackedRegion,
    PackedTypes,
    ShippedIndex,
    ShippedRegion,
    unpack,
)
from karpool.model.catalogue.refresh import FORMAT
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Wire, decode
from karpool.model.kubernetes.node import INSTANCE_TYPE, REGION
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.labels import check_key, check_value
from karpool.model.requirements import ValueSet
from karpool.model.resources import Resources

PACKED = "karpool-packed-catalogue/1"
READABLE = FORMAT

MAGIC = b"karpool-catalogue/2\n"
PROVIDERS = ("aws", "azure", "gcp")
_FILE_MAX = 64 * 2**20


class PackedCatalogue(Wire, frozen=True):
    """Types as in PackedTypes, and several regions of one provider."""

    format: str
    provider: str
    names: list[str]
    labels: dict[str, PackedLabel]
    capacity: dict[str, list[int]]
    allocatable: dict[str, list[int]]
    regions: dict[str, PackedRegion]
    gpus: PackedGpus | None = None
    sources: list[str] | None = None


class ReadableOffering(Wire, frozen=True):
    zones: list[str]
    capacity_type: str
    price_per_hour: float | None = None
    available: bool = True


class ReadableGpu(Wire, frozen=True):
    """A GPU. `partition` is the share of a whole device that one unit is."""

    model: str
    memory_mib: Annotated[int, msgspec.Meta(ge=0)] = 0
    partition: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


class ReadableType(Wire, frozen=True):
    name: str
    capacity: QuantityMap
    allocatable: QuantityMap | None = None
    labels: dict[str, str] | None = None
    offerings: list[ReadableOffering] | None = None
    gpu: ReadableGpu | None = None


class ReadableCatalogue(Wire, frozen=True):
    format: str
    provider: str
    region: str
    types: list[ReadableType]
    as_of: str = ""


def shipped_regions() -> tuple[str, ...]:
    return tuple(_providers_by_region())


def shipped_provider(region: str) -> str:
    """Return the provider of a region; empty if none is shipped. Region names are unique over clouds."""
    return _providers_by_region().get(region, "")


def shipped_region(region: str) -> ShippedRegion:
    """Return the index entry of a region; raises KeyError if it is not shipped."""
    return _index(_providers_by_region()[region])[0].regions[region]


def shipped_zones(region: str) -> tuple[str, ...]:
    """Return the usual zone names of a region; raises KeyError if it is not shipped."""
    return tuple(shipped_region(region).zone_names)


@cache
def shipped_families(provider: str) -> frozenset[str]:
    """Return the families of a provider, as `family_of` names them."""
    labels = _shipped_types(provider).labels
    return frozenset(value for key in FAMILY_LABELS if key in labels for value in labels[key].values)


@cache
def shipped_type_names(provider: str) -> frozenset[str]:
    return frozenset(_shipped_types(provider).names)


def load_shipped(
    region: str, *, zones: Mapping[str, str | None] | None = None, auto_mode: bool = False
) -> Catalogue:
    """Return the shipped catalogue of one region of any cloud.

    `zones` maps the zone names of the cluster to the provider's IDs (None: unknown); without it the usual
    names are used. `auto_mode` names the labels as EKS Auto Mode does. Raises Invalid for a region that is
    not shipped.
    """
    provider = shipped_provider(region)
    if not provider:
        raise unknown_region("region", region)
    index, start = _index(provider)
    columns = msgspec.msgpack.decode(
        _section(provider, start, index.regions[region].place), type=PackedRegion
    )
    return unpack(provider, _shipped_types(provider), region, columns, zones=zones, auto_mode=auto_mode)


def unknown_region(path: str, region: str) -> Invalid:
    """Return an error that names regions with a similar spelling, and what to do."""
    near = get_close_matches(region, shipped_regions(), n=3, cutoff=0.7)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    reason = (
        f"no catalogue is shipped for it; {hint}`karpool catalogue regions` lists those that are,"
        " --catalogue gives your own"
    )
    return Invalid(path, region, reason)


@cache
def _providers_by_region() -> dict[str, str]:
    return {region: provider for provider in PROVIDERS for region in sorted(_index(provider)[0].regions)}


@cache
def _index(provider: str) -> tuple[ShippedIndex, int]:
    """Return the index, and where its sections start."""
    with _shipped_file(provider).open("rb") as file:
        head = file.read(len(MAGIC) + 4)
        assert head.startswith(MAGIC), f"{provider}.catalogue is not of this version"
        size = int.from_bytes(head[len(MAGIC) :], "little")
        return msgspec.msgpack.decode(zlib.decompress(file.read(size)), type=ShippedIndex), len(head) + size


@cache
def _shipped_types(provider: str) -> PackedTypes:
    """Return the types; cached, because all regions of a provider share them."""
    index, start = _index(provider)
    return msgspec.msgpack.decode(_section(provider, start, index.types), type=PackedTypes)


def _section(provider: str, start: int, place: tuple[int, int]) -> bytes:
    offset, size = place
    with _shipped_file(provider).open("rb") as file:
        file.seek(start + offset)
        return zlib.decompress(file.read(size))


def _shipped_file(provider: str) -> Traversable:
    return files("karpool.model").joinpath(f"data/{provider}.catalogue")


def read_catalogue(
    data: bytes, region: str = "", *, zones: Mapping[str, str | None] | None = None
) -> Catalogue:
    """Read a catalogue file in either format. `region` chooses from a packed file with several.

    With `zones`, only offerings in these zones are kept.
    """
    raw = _decoded(data)
    kind = raw.get("format") if isinstance(raw, dict) else None
    if kind == PACKED:
        packed = decode(raw, PackedCatalogue)
        if not region and len(packed.regions) == 1:
            region = next(iter(packed.regions))
        if region not in packed.regions:
            raise Invalid(
                "region",
                region,
                f"is not in the file, which has {', '.join(packed.regions)}; choose with --region",
            )
        types = PackedTypes(packed.names, packed.labels, packed.capacity, packed.allocatable, packed.gpus)
        return unpack(packed.provider, types, region, packed.regions[region], zones=zones)
    if kind == READABLE:
        return _from_readable(decode(raw, ReadableCatalogue), zones)
    raise Invalid("format", kind, f"must be {READABLE} or {PACKED}; see docs/catalogue.md")


def _decoded(data: bytes) -> Any:
    text = _inflated(data) if data[:2] == b"\x1f\x8b" else data
    if len(text) > _FILE_MAX:
        raise Invalid("", f"{len(text)} bytes", "is larger than 64 MiB")
    try:
        return safe_yaml.json_or_yaml(text, size_limit=_FILE_MAX)
    except safe_yaml.UnusableYaml as error:
        raise Invalid("", text[:40], str(error)) from None


def _inflated(data: bytes) -> bytes:
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = reader.decompress(data, _FILE_MAX)
    except zlib.error as error:
        raise Invalid("", data[:16], f"is not a complete gzip file: {error}") from None
    if not reader.eof:
        raise Invalid("", f"{len(data)} bytes", "is cut short, or larger than 64 MiB when unpacked")
    return text


def _from_readable(readable: ReadableCatalogue, only: Mapping[str, str | None] | None = None) -> Catalogue:
    types: dict[str, InstanceType] = {}
    for index, entry in enumerate(readable.types):
        try:
            if entry.name in types:
                raise Invalid("name", entry.name, "occurs twice")
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
    absent = dict.fromkeys(sorted(keys), ABSENT)
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
        gpu=TypeGpu(entry.gpu.model, entry.gpu.memory_mib, entry.gpu.partition) if entry.gpu else None,
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
