"""Updates the prices of a catalogue from a table, and writes a catalogue as a file for --catalogue. Pure."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT
from karpool.model.kubernetes.node import INSTANCE_TYPE, REGION, ZONE
from karpool.model.resources import quantities

FORMAT = "karpool-catalogue/1"
PRICES_MAX = 64 * 2**20
_REQUIRED = ("region", "type")
_PRICES = {"on_demand": ON_DEMAND, "spot": SPOT}
_OWN_LABELS = frozenset((INSTANCE_TYPE, REGION, ZONE, CAPACITY_TYPE))


@dataclass(frozen=True, slots=True)
class NewPrice:
    """A price from the table. An empty `zone` means all zones of the region."""

    region: str
    type: str
    zone: str
    capacity_type: str
    price_per_hour: float
    as_of: str


# Far above the price of any machine on sale.
_PRICE_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ChangedPrice:
    type: str
    capacity_type: str
    before: float | None
    after: float


def read_prices(data: bytes) -> list[NewPrice]:
    """Read a CSV table of prices. Raises Invalid, which names the line.

    Columns: region, type, and on_demand or spot; optionally zone, currency, on_demand_asof and spot_asof.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid("", data[:20], f"is not UTF-8: {error.reason}") from None
    rows = csv.DictReader(io.StringIO(text), strict=True)
    try:
        return list(_prices_of(rows))
    except csv.Error as error:
        raise Invalid(f"line {rows.line_num}", "", f"is not CSV: {error}") from None


def _prices_of(rows: "csv.DictReader[str]") -> Iterator[NewPrice]:
    lacking = [name for name in _REQUIRED if name not in (rows.fieldnames or ())]
    if lacking or not any(name in (rows.fieldnames or ()) for name in _PRICES):
        raise Invalid(
            "line 1", ",".join(rows.fieldnames or ()), "must name region, type, and on_demand or spot"
        )
    names = list(rows.fieldnames or ())
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise Invalid("line 1", twice, "is the name of two columns")
    lines: dict[tuple[str, ...], int] = {}
    for row in rows:
        for price in _prices_in(row, f"line {rows.line_num}"):
            offering = price.region, price.type, price.zone, price.capacity_type
            if offering in lines:
                reason = f"line {lines[offering]} has a price for the same"
                raise Invalid(f"line {rows.line_num}", "/".join(filter(None, offering)), reason)
            lines[offering] = rows.line_num
            yield price


def _prices_in(row: Mapping[str, str | None], line: str) -> Iterator[NewPrice]:
    if None in row.values() or None in row:
        raise Invalid(line, "", "has another number of fields than line 1")
    currency = row.get("currency") or "USD"
    if currency != "USD":
        raise Invalid(f"{line}.currency", currency, "prices are in USD; convert them first")
    for name in _REQUIRED:
        if not row[name]:
            raise Invalid(f"{line}.{name}", "", "must not be empty")
    for column, capacity_type in _PRICES.items():
        text = row.get(column)
        if not text:
            continue
        try:
            price = float(text)
        except ValueError:
            price = math.nan
        if not 0 <= price <= _PRICE_MAX:
            reason = f"must be a finite number of USD per hour, 0 or more, at most {_PRICE_MAX:,}"
            raise Invalid(f"{line}.{column}", text[:40], reason)
        yield NewPrice(
            str(row["region"]),
            str(row["type"]),
            row.get("zone") or "",
            capacity_type,
            price,
            row.get(f"{column}_asof") or "",
        )


def refreshed(catalogue: Catalogue, prices: Iterable[NewPrice]) -> tuple[Catalogue, list[ChangedPrice]]:
    """Return the catalogue with newer prices, and the changes. Types that it does not list are ignored."""
    by_type: dict[str, list[NewPrice]] = {}
    for price in prices:
        if price.region == catalogue.region:
            by_type.setdefault(price.type, []).append(price)
    if not by_type:
        raise Invalid("region", catalogue.region, "does not occur in the file; choose another --region")
    changes: list[ChangedPrice] = []
    types = [
        _refreshed_type(instance_type, by_type.get(name, ()), catalogue, changes)
        for name, instance_type in catalogue.types.items()
    ]
    days = sorted({price.as_of for listed in by_type.values() for price in listed if price.as_of})
    as_of = f"{catalogue.as_of}; refreshed {days[-1]}" if days else catalogue.as_of
    return Catalogue(catalogue.provider, catalogue.region, types, as_of=as_of, zones=catalogue.zones), changes


def _refreshed_type(
    instance_type: InstanceType, prices: Sequence[NewPrice], catalogue: Catalogue, changes: list[ChangedPrice]
) -> InstanceType:
    if not prices:
        return instance_type
    offered = {(offering.zone, offering.capacity_type): offering for offering in instance_type.offerings}
    # A newer price does not add a type to zones where it is not sold, nor back to where it is retired.
    sold = {offering.zone: offering.available for offering in instance_type.offerings}
    # The price of a zone comes last and wins.
    for price in sorted(prices, key=lambda entry: bool(entry.zone)):
        kind, now = price.capacity_type, price.price_per_hour
        zones = [price.zone] if price.zone else list(sold or catalogue.zones)
        zones = [zone for zone in zones if zone in catalogue.zones]
        before = [offered[zone, kind].price_per_hour if (zone, kind) in offered else None for zone in zones]
        if (old := next((earlier for earlier in before if earlier != now), now)) != now:
            changes.append(ChangedPrice(instance_type.name, kind, old, now))
        for zone in zones:
            offering = offered.get((zone, kind))
            available = sold.get(zone, True) if offering is None else offering.available
            offered[zone, kind] = Offering(zone, kind, now, available)
    return instance_type.sold_as(offered.values())


def as_document(catalogue: Catalogue) -> dict[str, Any]:
    """Return the catalogue in the hand-written format, for --catalogue."""
    return {
        "format": FORMAT,
        "provider": catalogue.provider,
        "region": catalogue.region,
        "asOf": catalogue.as_of,
        "types": [_type_document(instance_type) for instance_type in catalogue.types.values()],
    }


def _type_document(instance_type: InstanceType) -> dict[str, Any]:
    offerings: dict[tuple[str, float | None, bool], list[str]] = {}
    for offering in instance_type.offerings:
        key = offering.capacity_type, offering.price_per_hour, offering.available
        offerings.setdefault(key, []).append(offering.zone)
    document: dict[str, Any] = {
        "name": instance_type.name,
        "labels": {
            key: next(iter(values.values))
            for key, values in instance_type.requirements.items()
            if key not in _OWN_LABELS and len(values.values) == 1
        },
        "capacity": quantities(instance_type.capacity),
        "allocatable": quantities(instance_type.allocatable),
        "offerings": [
            {"zones": zones, "capacityType": kind, "pricePerHour": price, "available": available}
            for (kind, price, available), zones in offerings.items()
        ],
    }
    if (gpu := instance_type.gpu) is not None:
        document["gpu"] = {"model": gpu.model, "memoryMib": gpu.memory_mib, "partition": gpu.partition}
    return document
