"""`karpool catalogue`: which regions, types and prices are known, and newer prices for them."""

from pathlib import Path
from typing import Any

import click
import msgspec

from karpool.cli.exit_codes import CommandFailed
from karpool.cli.inspect.listing_options import StaticListingOptions, emit_listing
from karpool.cli.options.cluster import RegionParam, catalogue_option, output_option
from karpool.cli.options.parameters import with_options
from karpool.cli.output.listing import ListedItem, Listing
from karpool.cli.output.text import columns, emit, machine, note, pluralize
from karpool.kube.bounded_input import read_bounded
from karpool.model import resources
from karpool.model.catalogue.catalogue import Catalogue, InstanceType
from karpool.model.catalogue.files import (
    PROVIDERS,
    load_shipped,
    read_catalogue,
    shipped_provider,
    shipped_region,
    shipped_regions,
)
from karpool.model.catalogue.refresh import PRICES_MAX, as_document, read_prices, refreshed
from karpool.model.documents import camel_case, document_of
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import ON_DEMAND, SPOT

UNKNOWN = "?"
NONE = "-"
_OUTPUT = output_option("table", "wide", "json", "yaml")
_REGION = click.option(
    "--region",
    type=RegionParam(),
    default="",
    help="Region, such as eu-central-1 or westeurope. Default: all regions.",
)


@click.group(epilog="Example: karpool catalogue show m7g.large --region eu-central-1")
def catalogue() -> None:
    """Show instance types and prices. Does not read a cluster."""


@catalogue.command(epilog="Example: karpool catalogue regions --provider azure")
@click.option("--provider", type=click.Choice(PROVIDERS), help="Show only this cloud. Default: all.")
@with_options(StaticListingOptions, "listing")
def regions(provider: str | None, listing: StaticListingOptions) -> None:
    """List the regions with shipped prices, their zones, and the age of the prices."""
    items: list[ListedItem] = []
    for name in shipped_regions():
        if provider in (None, shipped_provider(name)):
            region = shipped_region(name)
            item = {
                "region": name,
                "provider": shipped_provider(name),
                "zones": list(region.zone_names),
                "on_demand_as_of": region.on_demand_as_of,
                "spot_as_of": region.spot_as_of,
            }
            cells = [
                name,
                shipped_provider(name),
                str(len(region.zone_names)),
                region.on_demand_as_of or UNKNOWN,
                region.spot_as_of or UNKNOWN,
            ]
            zones = ",".join(region.zone_names)
            items.append(ListedItem(name, camel_case(item, old_keys=True), cells, [zones]))
    header = ("REGION", "PROVIDER", "ZONES", "ON-DEMAND AS OF", "SPOT AS OF")
    summary = [f"{pluralize(len(items), 'region')}"]
    table = Listing("RegionList", "region", header, items, ["NAMES OF ZONES"], summary=summary)
    emit_listing(table, listing.form)


@catalogue.command("list", epilog="Example: karpool catalogue list --region westeurope --family Ds_v5")
@_REGION
@click.option(
    "--family", default="", help="Show types whose family, series or name starts with this. Default: all."
)
@click.option("--gpu", is_flag=True, help="Show only types with GPUs.")
@catalogue_option
@with_options(StaticListingOptions, "listing")
def list_(region: str, family: str, gpu: bool, catalogue: Path | None, listing: StaticListingOptions) -> None:
    """List the types of a region: size, capacity for pods, GPUs, and on-demand and spot prices."""
    prices = _catalogue(region, catalogue)
    types = [
        instance_type
        for instance_type in prices.types.values()
        if (not family or _is_of_family(instance_type, family)) and (not gpu or instance_type.gpu is not None)
    ]
    types.sort(key=lambda instance_type: (instance_type.capacity.get(resources.CPU, 0), instance_type.name))
    items = [
        ListedItem(
            instance_type.name,
            _described(prices, instance_type),
            [
                instance_type.name,
                resources.show_rounded(resources.CPU, instance_type.capacity.get(resources.CPU, 0)),
                resources.show_rounded(resources.MEMORY, instance_type.allocatable.get(resources.MEMORY, 0)),
                _gpus(instance_type),
                _money(_least(instance_type, ON_DEMAND)),
                _money(_least(instance_type, SPOT)),
            ],
            [",".join(sorted({offering.zone for offering in instance_type.offerings}))],
            _labels(instance_type),
        )
        for instance_type in types
    ]
    header = ("TYPE", "CPU", "MEMORY LEFT", "GPU", "$/H", "SPOT $/H")
    said = f"{prices.region}: {pluralize(len(types), 'type')}, prices of {prices.as_of or UNKNOWN}"
    table = Listing(
        "InstanceTypeList", "instancetype", header, items, ["ZONES"], _head(prices), [said], empty=said
    )
    emit_listing(table, listing.form)


@catalogue.command(epilog="Example: karpool catalogue show Standard_D4s_v5 --region westeurope")
@click.argument("type_name", metavar="TYPE")
@_REGION
@catalogue_option
@_OUTPUT
def show(type_name: str, region: str, catalogue: Path | None, output: str) -> None:
    """Show one type: labels, capacity, allocatable, and its price in every zone of a region.

    Without --region, show its price in every region that has it.
    """
    if not region and catalogue is None:
        _show_everywhere(type_name, output)
        return
    prices = _catalogue(region, catalogue)
    instance_type = prices.types.get(type_name)
    if instance_type is None:
        raise CommandFailed(
            f"{type_name!r} is not in the catalogue of {prices.region}; {_unsized(prices, type_name)}"
        )
    if output in ("json", "yaml"):
        content = {**_head(prices), **_described(prices, instance_type)}
        emit(machine("InstanceType", content, output))
        return
    labels = _labels(instance_type)
    lines = [f"{type_name} in {prices.region} ({prices.provider}), prices of {prices.as_of or UNKNOWN}", ""]
    lines.append(
        columns(
            ["RESOURCE", "CAPACITY", "LEFT FOR PODS"],
            (
                [
                    name,
                    resources.show_amount(name, units),
                    resources.show_amount(name, instance_type.allocatable.get(name, 0)),
                ]
                for name, units in instance_type.capacity.items()
            ),
        )
    )
    lines += ["", columns(["LABEL", "VALUE"], ([key, value] for key, value in sorted(labels.items()))), ""]
    lines.append(
        columns(
            ["ZONE", "BOUGHT AS", "$/H", "CAN BE HAD"],
            (
                [one.zone, one.capacity_type, _money(one.price_per_hour), "yes" if one.available else "no"]
                for one in instance_type.offerings
            ),
        )
    )
    emit("\n".join(lines))


@catalogue.command(
    epilog="Example: karpool catalogue refresh prices.csv --region eu-central-1 --write mine.json"
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_REGION
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a file for --catalogue. Default: only compare.",
)
@_OUTPUT
def refresh(file: Path, region: str, write: Path | None, output: str) -> None:
    """Compare newer prices with the shipped ones, and write a catalogue with them.

    FILE is a CSV table with the columns region, type, and on_demand or spot in USD per hour. The columns
    zone, on_demand_asof and spot_asof are optional.
    """
    try:
        prices = read_prices(read_bounded(file, PRICES_MAX))
    except OSError as error:
        raise Invalid(str(file), "", f"cannot be read: {error.strerror or error}") from None
    except Invalid as error:
        raise error.at(str(file)) from None
    named = sorted({price.region for price in prices})
    if not region and len(named) == 1:
        region = named[0]
    if not region:
        raise click.UsageError(f"{file} has {pluralize(len(named), 'region')}; choose one with --region")
    before = load_shipped(region)
    after, changes = refreshed(before, prices)
    unlisted = sorted({price.type for price in prices if price.region == region} - before.types.keys())
    if write is not None:
        part = write.with_name(f"{write.name}.part")  # never half of it
        part.write_bytes(msgspec.json.format(msgspec.json.encode(as_document(after)), indent=1))
        part.replace(write)
        note(f"wrote {write}: use it with --catalogue {write}")
    if unlisted:
        note(f"left out, because their size is unknown: {', '.join(unlisted[:10])}")
    elsewhere = sorted(
        {price.zone for price in prices if price.region == region and price.zone} - {*before.zones}
    )
    if elsewhere:
        note(
            f"left out, because they are not zones of {region}: {', '.join(elsewhere[:10])}; use "
            f"names like {next(iter(before.zones))}"
        )
    if output in ("json", "yaml"):
        items = [document_of(change, old_keys=True) for change in changes]
        emit(machine("PriceChangeList", {**_head(after), "items": items}, output))
        return
    rows = [[one.type, one.capacity_type, _money(one.before), _money(one.after)] for one in changes]
    if rows:
        emit(columns(["TYPE", "BOUGHT AS", "SHIPPED $/H", "NOW $/H"], rows) + "\n")
    emit(f"{region}: {pluralize(len(changes), 'price')} changed, of {len(before.types)} types")


def _catalogue(region: str, file: Path | None) -> Catalogue:
    if file is not None:
        return read_catalogue(file.read_bytes(), region)
    if not region:
        raise click.UsageError("pass --region; `karpool catalogue regions` lists the regions")
    return load_shipped(region)


def _show_everywhere(name: str, output: str) -> None:
    items: list[dict[str, Any]] = []
    for region in shipped_regions():
        prices = load_shipped(region)
        if prices.knows_price_of(name):
            zone = next(iter(prices.zones))
            item = {
                "region": region,
                "provider": prices.provider,
                "on_demand_per_hour": prices.price_of_running(name, zone, ON_DEMAND),
                "spot_per_hour": prices.price_of_running(name, zone, SPOT),
                "as_of": prices.as_of,
            }
            items.append(camel_case(item, old_keys=True))
    if not items:
        raise CommandFailed(
            f"{name!r} is not sold in any shipped region; pass your own types with --catalogue"
        )
    if output in ("json", "yaml"):
        emit(machine("InstanceTypePrices", {"name": name, "items": items}, output))
        return
    rows = [
        [
            item["region"],
            item["provider"],
            _money(item["on_demand_per_hour"]),
            _money(item["spot_per_hour"]),
            item["as_of"],
        ]
        for item in items
    ]
    emit(columns(["REGION", "PROVIDER", "$/H", "SPOT $/H", "AS OF"], rows))


def _unsized(catalogue: Catalogue, name: str) -> str:
    if catalogue.knows_price_of(name):
        price = catalogue.price_of_running(name, next(iter(catalogue.zones)), ON_DEMAND)
        return f"its list price is ${_money(price)} per hour; its size is not published"
    return f"`karpool catalogue show {name}` lists its regions"


def _head(catalogue: Catalogue) -> dict[str, Any]:
    head = {"provider": catalogue.provider, "region": catalogue.region, "as_of": catalogue.as_of}
    return camel_case(head, old_keys=True)


def _described(catalogue: Catalogue, instance_type: InstanceType) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": instance_type.name,
        "labels": _labels(instance_type),
        "capacity": instance_type.capacity,
        "allocatable": instance_type.allocatable,
        "offerings": document_of(instance_type.offerings, old_keys=True),
    }
    if instance_type.gpu is not None:
        document["gpu"] = document_of(instance_type.gpu, old_keys=True)
    return document


def _labels(instance_type: InstanceType) -> dict[str, str]:
    return {
        key: ",".join(sorted(values.values))
        for key, values in instance_type.requirements.items()
        if values.values
    }


def _is_of_family(instance_type: InstanceType, family: str) -> bool:
    if instance_type.name.startswith(family):
        return True
    return any(
        key.endswith(("-family", "-series")) and family in values.values
        for key, values in instance_type.requirements.items()
    )


def _gpus(instance_type: InstanceType) -> str:
    if instance_type.gpu is None:
        return NONE
    units = sum(units for name, units in instance_type.allocatable.items() if name.endswith(".com/gpu"))
    part = "" if instance_type.gpu.partition == 1 else f" (1/{round(1 / instance_type.gpu.partition)})"
    return f"{units} x {instance_type.gpu.model}{part}"


def _least(instance_type: InstanceType, capacity_type: str) -> float | None:
    prices = [
        offering.price_per_hour
        for offering in instance_type.offerings
        if offering.capacity_type == capacity_type and offering.price_per_hour is not None
    ]
    return min(prices, default=None)


def _money(price: float | None) -> str:
    return UNKNOWN if price is None else f"{price:.4f}"
