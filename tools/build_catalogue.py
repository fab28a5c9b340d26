"""Derive the catalogue files that the package ships from public lists of types and prices.

    python tools/build_catalogue.py FOLDER OUTPUT

FOLDER holds `types.json.gz`, `prices.csv.gz` and `aws_karpenter_labels.json.gz`; their fields are listed in
docs/catalogue.md. OUTPUT gets one file per provider. What the lists do not say is computed here as each
provider's Karpenter computes it: labels from the name of a type, and what is left of it for pods. The same
input gives the same bytes.
"""

import argparse
import csv
import gzip
import json
import math
import re
import statistics
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from karpool.model.catalogue.columns import (
    PackedGpus,
    PackedLabel,
    PackedRegion,
    PackedTypes,
    ShippedIndex,
    ShippedRegion,
)
from karpool.model.catalogue.files import MAGIC

Row = dict[str, Any]
Labels = dict[str, str]
Amounts = dict[str, int]
Documented = dict[str, dict[str, dict[str, str]]]

MIB = 2**20
GIB = 2**30
TYPE, ARCH, OS = "node.kubernetes.io/instance-type", "kubernetes.io/arch", "kubernetes.io/os"
AWS, AZURE, GCP = "karpenter.k8s.aws/instance-", "karpenter.azure.com/sku-", "karpenter.k8s.gcp/instance-"

# The default root volume of an EC2NodeClass, and what Karpenter leaves of it for pods.
AWS_DISK, AWS_DISK_LEFT = 20 * GIB, 17 * GIB
# Zone letters differ from account to account; these are the ones that new accounts see. Others start with a.
AWS_LETTERS = {"ap-northeast-1": "acd", "ca-central-1": "abd", "us-west-1": "ac"}
AWS_ZONES = {"us-gov-east-1": "abc", "us-gov-west-1": "abc"}  # no zone ids are published for these

# Shares of memory (GiB) and CPU (cores) that AKS keeps for itself, up to each bound.
AKS_MEMORY = ((4, 0.25), (8, 0.20), (16, 0.10), (128, 0.06), (math.inf, 0.02))
AKS_CPU = ((1, 0.06), (2, 0.04), (4, 0.02), (math.inf, 0.01))
AKS_VM_OVERHEAD, AKS_EVICTION, AKS_DISK = 0.075, 750 * MIB, 128 * 10**9
# Regions that have availability zones; nodes of the others carry the zone label "0".
AKS_ZONAL = (
    "australiaeast",
    "austriaeast",
    "brazilsouth",
    "canadacentral",
    "centralindia",
    "centralus",
    "chilecentral",
    "eastasia",
    "eastus",
    "eastus2",
    "francecentral",
    "germanywestcentral",
    "indonesiacentral",
    "israelcentral",
    "italynorth",
    "japaneast",
    "japanwest",
    "koreacentral",
    "malaysiawest",
    "mexicocentral",
    "newzealandnorth",
    "northeurope",
    "norwayeast",
    "polandcentral",
    "qatarcentral",
    "southafricanorth",
    "southcentralus",
    "southeastasia",
    "spaincentral",
    "swedencentral",
    "switzerlandnorth",
    "uaenorth",
    "uksouth",
    "westeurope",
    "westus2",
    "westus3",
)
# Standard_NC24-8ads_A100_v4: family, subfamily, CPUs, constrained CPUs, features, accelerator, version.
AKS_NAME = re.compile(
    r"(?:Standard|Basic)_(?P<family>[A-Z])(?P<sub>[A-Z]*)(?P<cpu>\d+)(?:-\d+)?(?P<features>[a-z]*)"
    r"(?P<rest>(?:_[A-Za-z0-9]+)*?)(?:_v(?P<version>\d+))?(?:_Promo)?"
)

# The same of GKE, in MiB and milli-CPU; each step is cut to whole units.
GKE_MEMORY = ((4096, 0.25), (4096, 0.20), (8192, 0.10), (114_688, 0.06), (math.inf, 0.02))
GKE_CPU = ((1000, 0.06), (1000, 0.01), (2000, 0.005), (math.inf, 0.0025))
GKE_VM_OVERHEAD, GKE_EVICTION, GKE_BOOT_GIB = 0.07, 100 * MIB, 100
GKE_SHARED_CORE = frozenset(("e2-micro", "e2-small", "e2-medium"))
GKE_GPUS = {
    "a100": "nvidia-tesla-a100",
    "a100-80gb": "nvidia-a100-80gb",
    "h100": "nvidia-h100-80gb",
    "h100-mega": "nvidia-h100-mega-80gb",
    "l4": "nvidia-l4",
    "rtx-pro-6000": "nvidia-rtx-pro-6000",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    folder: Path = options.folder
    documented: Documented = json.loads(_text(folder / "aws_karpenter_labels.json.gz"))
    types: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in json.loads(_text(folder / "types.json.gz")):
        types[row["provider"]][row["name"]] = row
    prices: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(_text(folder / "prices.csv.gz").splitlines()):
        prices[row["provider"]][row["region"]].append(row)
    for provider in sorted(types):
        known, regions = types[provider], prices[provider]
        names = sorted(known)
        described = [described_as(known[name], documented.get(name, {})) for name in names]
        positions = {name: position for position, name in enumerate(names)}
        packed = {name: pack_region(provider, name, rows, known, positions) for name, rows in regions.items()}
        data = shipped_file(provider, pack_types(names, known, described), dict(sorted(packed.items())))
        (options.output / f"{provider}.catalogue").write_bytes(data)
        sys.stdout.write(f"{provider}: {len(names)} types, {len(packed)} regions, {len(data):,} bytes\n")
    return 0


def shipped_file(provider: str, types: PackedTypes, regions: dict[str, PackedRegion]) -> bytes:
    """An index, then a compressed section for the types and one per region: a reader takes what it needs."""
    sections: list[bytes] = []

    def place(section: PackedTypes | PackedRegion) -> tuple[int, int]:
        start = sum(map(len, sections))
        sections.append(zlib.compress(msgspec.msgpack.encode(section), 9))
        return start, len(sections[-1])

    index = ShippedIndex(
        provider,
        place(types),
        {
            name: ShippedRegion(place(region), region.zone_names, region.on_demand_as_of, region.spot_as_of)
            for name, region in regions.items()
        },
    )
    header = zlib.compress(msgspec.msgpack.encode(index), 9)
    return b"".join((MAGIC, len(header).to_bytes(4, "little"), header, *sections))


def _text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


# Types


def described_as(row: Row, documented: dict[str, dict[str, str]]) -> tuple[Labels, Amounts, Amounts]:
    """Labels, capacity and allocatable; no amounts where nobody publishes the size."""
    if not row["vcpu"] or not row["memory_mib"]:
        return {}, {}, {}
    labels, capacity, allocatable = {"aws": aws_type, "azure": aks_type, "gcp": gke_type}[row["provider"]](
        row, documented
    )
    if min(allocatable["cpu"], allocatable["memory"]) <= 0:
        return {}, {}, {}  # what the system keeps leaves no room for a pod: it is no node
    plain = {TYPE: row["name"], ARCH: row["arch"], OS: "linux"}
    return plain | labels, capacity, allocatable


def aws_type(row: Row, documented: dict[str, dict[str, str]]) -> tuple[Labels, Amounts, Amounts]:
    """Karpenter takes 7.5 % of memory for the machine itself, on arm64 another 64 MiB first."""
    memory = row["memory_mib"] - (64 if row["arch"] == "arm64" else 0)
    extended = aws_devices(row, documented.get("allocatable"))
    capacity = {
        "cpu": row["vcpu"] * 1000,
        "memory": (memory - math.ceil(memory * 0.075)) * MIB,
        "pods": row["pods_max"],
        "ephemeral-storage": AWS_DISK,
        **extended,
    }
    allocatable = {
        "cpu": row["allocatable"]["cpu_milli"],
        "memory": row["allocatable"]["memory_mib"] * MIB,
        "pods": row["pods_max"],
        "ephemeral-storage": AWS_DISK_LEFT,
        **extended,
    }
    # Table headings of the documented page come along as keys with spaces.
    labels = {key: value for key, value in documented.get("labels", {}).items() if " " not in key}
    return labels or aws_labels(row), capacity, allocatable


def aws_devices(row: Row, documented: dict[str, str] | None) -> Amounts:
    """Resources with a slash in their name: all of them are allocatable."""
    if documented is not None:
        return {name: int(amount) for name, amount in documented.items() if "/" in name}
    return gpu_resource(row)


def aws_labels(row: Row) -> Labels:
    family, _, size = row["name"].partition(".")
    shape = re.match(r"([a-z]+)(?:-[0-9]+tb)?([0-9]*)", family)
    facts = {
        "category": shape[1] if shape else None,
        "generation": (shape[2] if shape else None) or None,
        "family": family,
        "size": size,
        "cpu": row["vcpu"],
        "memory": row["memory_mib"],
        "hypervisor": "" if row["bare_metal"] else "nitro",
        "network-bandwidth": row["network_mbps"],
        "local-nvme": row["local_nvme_gb"],
    }
    for kind in ("gpu", "accelerator"):
        if device := row[kind]:
            facts |= {
                f"{kind}-name": device["model"],
                f"{kind}-manufacturer": device["manufacturer"],
                f"{kind}-count": device["count"],
                f"{kind}-memory": device.get("memory_mib"),
            }
    return {AWS + key: str(value) for key, value in facts.items() if value is not None}


def gpu_resource(row: Row) -> Amounts:
    """Units that the vendor's plugin offers. A slice counts as one where that is known, else it has none."""
    gpu = row["gpu"] or {}
    units = gpu.get("schedulable") or gpu.get("count")
    return {f"{gpu['manufacturer']}.com/gpu": units} if units and gpu["manufacturer"] else {}


def aks_type(row: Row, _: object) -> tuple[Labels, Amounts, Amounts]:
    cores, gib = row["vcpu_constrained"] or row["vcpu"], row["memory_mib"] / 1024
    whole = int(gib) * GIB
    capacity = {
        "cpu": cores * 1000,
        "memory": whole - math.ceil(whole * AKS_VM_OVERHEAD),
        "pods": row["pods_max"],
        "ephemeral-storage": AKS_DISK,
        **gpu_resource(row),
    }
    reserved_cpu, reserved_memory = (
        int(1000 * taxed(cores, AKS_CPU)),
        int(1024 * taxed(gib, AKS_MEMORY)) * MIB,
    )
    allocatable = capacity | {
        "cpu": capacity["cpu"] - reserved_cpu,
        "memory": capacity["memory"] - reserved_memory - AKS_EVICTION,
    }
    return aks_labels(row, cores), capacity, allocatable


def taxed(amount: float, brackets: Iterable[tuple[float, float]]) -> float:
    tax = lower = 0.0
    for upper, rate in brackets:
        if lower < amount:
            tax += (min(upper, amount) - lower) * rate
        lower = upper
    return tax


def aks_labels(row: Row, cores: int) -> Labels:
    sizes = {"cpu": str(cores), "memory": str(row["memory_mib"])}
    labels = {AZURE + "name": row["name"]}
    labels |= {AZURE + key: value for key, value in sizes.items()}
    labels |= {f"kubernetes.azure.com/sku-{key}": value for key, value in sizes.items()}
    gpu = row["gpu"] or {}
    labels[AZURE + "gpu-count"] = str(gpu.get("count") or 0)
    if gpu.get("manufacturer"):
        labels[AZURE + "gpu-manufacturer"] = gpu["manufacturer"]
        labels["kubernetes.azure.com/accelerator"] = gpu["manufacturer"]
    name = AKS_NAME.fullmatch(row["name"])
    if name is None:
        return labels
    version = name["version"]
    series = name["family"] + name["sub"] + name["features"] + (f"_v{version}" if version else "")
    labels |= {
        AZURE + "family": name["family"],
        AZURE + "series": series,
        AZURE + "version": version or "1",
        AZURE + "storage-premium-capable": str("s" in name["features"]).lower(),
    }
    if gpu and name["rest"]:
        labels[AZURE + "gpu-name"] = name["rest"].strip("_").split("_")[-1]
    return labels


def gke_type(row: Row, _: object) -> tuple[Labels, Amounts, Amounts]:
    memory, milli = row["memory_mib"] * MIB, row["vcpu"] * 1000
    local_gib, disks = row["local_nvme_gb"] or 0, math.ceil((row["local_nvme_gb"] or 0) / 375)
    disk_gib = local_gib or GKE_BOOT_GIB
    if local_gib:
        disk_reserved = {1: 50, 2: 75}.get(disks, 100)
    else:
        disk_reserved = min(int(disk_gib * 0.5), int(disk_gib * 0.35) + 6, 100)
    capacity = {
        "cpu": milli,
        "memory": memory - int(memory * GKE_VM_OVERHEAD),
        "pods": row["pods_max"],
        "ephemeral-storage": disk_gib * GIB,
        **gpu_resource(row),
    }
    reserved_cpu = 1060 if row["name"] in GKE_SHARED_CORE else stepped(milli, GKE_CPU)
    reserved_memory = 255 if row["memory_mib"] <= 1024 else stepped(row["memory_mib"], GKE_MEMORY)
    allocatable = capacity | {
        "cpu": capacity["cpu"] - reserved_cpu,
        "memory": capacity["memory"] - reserved_memory * MIB - GKE_EVICTION,
        "ephemeral-storage": (disk_gib - int(disk_gib * 0.1) - disk_reserved) * GIB,
    }
    return gke_labels(row), capacity, allocatable


def stepped(amount: int, steps: Iterable[tuple[float, float]]) -> int:
    total, left = 0, float(amount)
    for size, rate in steps:
        total += int(min(left, size) * rate)
        left -= size
        if left <= 0:
            break
    return total


def gke_labels(row: Row) -> Labels:
    parts = row["name"].split("-")
    family, shape = parts[:2]
    labels = {
        GCP + "category": re.split(r"\d", family)[0],
        GCP + "family": family,
        GCP + "shape": shape,
        GCP + "generation": family[-2] if len(family) == 3 else family[-1],
        GCP + "size": parts[-2] if len(parts) > 3 else parts[-1],
        GCP + "cpu": str(row["vcpu"]),
        GCP + "memory": str(row["memory_mib"]),
        "cloud.google.com/machine-family": family,
        "cloud.google.com/gke-cpu-scaling-level": str(row["vcpu"]),
        "cloud.google.com/gke-memory-gb-scaling-level": str(row["memory_mib"] // 1024),
    }
    if gpu := row["gpu"]:
        name = GKE_GPUS[gpu["model"]]
        units = str(gpu["schedulable"])
        labels |= {
            GCP + "gpu-name": name,
            GCP + "gpu-count": units,
            "cloud.google.com/gke-accelerator": name,
            "cloud.google.com/gke-accelerator-count": units,
        }
    return labels


# Columns


def pack_types(
    names: list[str], known: dict[str, Row], described: list[tuple[Labels, Amounts, Amounts]]
) -> PackedTypes:
    gpus = [(known[name]["gpu"] or {}) for name in names]
    with_gpu = [index for index, gpu in enumerate(gpus) if gpu.get("model")]
    return PackedTypes(
        names=names,
        labels=label_columns([labels for labels, _, _ in described]),
        capacity=columns([capacity for _, capacity, _ in described]),
        allocatable=columns([allocatable for _, _, allocatable in described]),
        gpus=PackedGpus(
            types=with_gpu,
            models=[gpus[index]["model"] for index in with_gpu],
            memory_mib=[gpus[index]["memory_mib"] or 0 for index in with_gpu],
            partition=[gpus[index]["partition_size"] or 1.0 for index in with_gpu],
        ),
    )


def columns(tables: list[Amounts]) -> dict[str, list[int]]:
    names = sorted({name for table in tables for name in table})
    return {name: [table.get(name, 0) for table in tables] for name in names}


def label_columns(tables: list[Labels]) -> dict[str, PackedLabel]:
    packed = {}
    for key in sorted({key for table in tables for key in table}):
        values = sorted({table[key] for table in tables if key in table})
        codes = {value: code for code, value in enumerate(values)}
        packed[key] = PackedLabel(values, [codes[table[key]] if key in table else -1 for table in tables])
    return packed


def pack_region(
    provider: str, region: str, rows: list[Row], known: dict[str, Row], positions: dict[str, int]
) -> PackedRegion:
    by_zone: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["zone"]:
            by_zone[row["type"]][row["zone"]] = price(row["spot"], row)
    types = sorted((row for row in rows if not row["zone"]), key=lambda row: positions[row["type"]])
    sold = [set(row["zones"].split()) | by_zone[row["type"]].keys() for row in types]
    zone_ids = sorted({zone for zones in sold for zone in zones})
    names = zone_names(provider, region, zone_ids)
    return PackedRegion(
        types=[positions[row["type"]] for row in types],
        zone_ids=zone_ids,
        zone_names=names,
        on_demand=[price(row["on_demand"], row) if row["on_demand"] else None for row in types],
        spot={
            zone: [by_zone[row["type"]].get(zone) for row in types]
            for zone in zone_ids
            if any(zone in by_zone[row["type"]] for row in types)
        },
        spot_median=[spot_median(by_zone[row["type"]], row) for row in types],
        sold=[[index for index, zone in enumerate(zone_ids) if zone in zones] for zones in sold],
        retired=[
            index for index, row in enumerate(types) if provider == "aws" and is_retired(row, known, region)
        ],
        on_demand_as_of=dates(row["on_demand_asof"] for row in types),
        spot_as_of=dates(row["spot_asof"] for row in types),
    )


def zone_names(provider: str, region: str, zone_ids: list[str]) -> list[str]:
    """The names that nodes carry: of GCP the ids themselves, elsewhere the usual ones."""
    if provider == "gcp":
        return zone_ids or [f"{region}-{letter}" for letter in "abc"]
    if provider == "azure":
        return [f"{region}-{number}" for number in (1, 2, 3)] if region in AKS_ZONAL else ["0"]
    letters = AWS_ZONES.get(region) or AWS_LETTERS.get(region, "abcdefgh")[: len(zone_ids)]
    return [region + letter for letter in letters]


def is_retired(row: Row, known: dict[str, Row], region: str) -> bool:
    """Old types keep a list price, but no zone lists them: they run, and cannot be had any more."""
    return (
        region == "us-east-1"
        and not row["zones"]
        and not row["spot"]
        and known[row["type"]]["spec_source"] != "karpenter-provider-aws"
    )


def spot_median(zones: dict[str, float], row: Row) -> float | None:
    if zones:
        return round(statistics.median(zones.values()), 6)
    return price(row["spot"], row) if row["spot"] else None


def price(text: str, row: Row) -> float:
    number = float(text)
    if not math.isfinite(number) or number <= 0:
        sys.exit(f"{row['region']} {row['type']}: price {text!r} must be a finite number above 0")
    return number


def dates(days: Iterable[str]) -> str:
    known = sorted({day for day in days if day})
    return known[0] if len(known) == 1 else " to ".join(known[:1] + known[-1:])


if __name__ == "__main__":
    sys.exit(main())
