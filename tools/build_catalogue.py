"""Pack instance types and prices into the catalogue file that the package ships.

    python tools/build_catalogue.py INPUT OUTPUT [--labels FILE] [--source TEXT ...]

INPUT is a JSON array (may be gzipped), one object per region and type; the fields are
listed in docs/catalogue.md. Rows of other providers than AWS are left out. FILE, if given,
maps each type to the labels and allocatable resources that Karpenter documents for it;
without it the labels are derived from the rows. The same input gives the same bytes.
"""

import argparse
import gzip
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Documented = dict[str, dict[str, dict[str, str]]]

MIB = 2**20
GIB = 2**30
PREFIX = "karpenter.k8s.aws/instance-"
# The default root volume of an EC2NodeClass, and what Karpenter leaves of it for pods.
EPHEMERAL_CAPACITY, EPHEMERAL_ALLOCATABLE = 20 * GIB, 17 * GIB
# Zone letters differ from account to account; these are the ones that new accounts see.
LETTERS = {"ap-northeast-1": "acd"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--labels", type=Path, help="labels and allocatable resources by type")
    parser.add_argument("--source", action="append", default=[], help="where the facts come from")
    options = parser.parse_args()
    rows = [row for row in read(options.input) if row["provider"] == "aws"]
    documented = read(options.labels) if options.labels else {}
    packed = pack(rows, documented, options.source)
    text = json.dumps(packed, separators=(",", ":"), sort_keys=True).encode()
    options.output.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))
    size = options.output.stat().st_size
    sys.stdout.write(f"{len(packed['names'])} types, {len(packed['regions'])} regions, {size:,} bytes\n")
    return 0


def read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def pack(rows: list[Row], documented: Documented, sources: list[str]) -> dict[str, Any]:
    by_name: dict[str, Row] = {}
    for row in rows:
        by_name.setdefault(row["name"], row)
    names = sorted(by_name)
    positions = {name: position for position, name in enumerate(names)}
    ordered = [by_name[name] for name in names]
    extras = [documented.get(row["name"], {}) for row in ordered]
    return {
        "format": "karpool-packed-catalogue/1",
        "provider": "aws",
        "sources": sources,
        "names": names,
        "labels": label_columns([labels(row, extra) for row, extra in zip(ordered, extras, strict=True)]),
        "capacity": columns([capacity(row, extra) for row, extra in zip(ordered, extras, strict=True)]),
        "allocatable": columns([allocatable(row, extra) for row, extra in zip(ordered, extras, strict=True)]),
        "regions": {
            region: pack_region(region, [row for row in rows if row["region"] == region], positions)
            for region in sorted({row["region"] for row in rows})
        },
    }


def labels(row: Row, extra: dict[str, dict[str, str]]) -> dict[str, str]:
    if documented := extra.get("labels"):
        # Table headings of the source page come along as keys with spaces.
        return {key: value for key, value in documented.items() if " " not in key}
    return derived_labels(row)


def derived_labels(row: Row) -> dict[str, str]:
    family, _, size = row["name"].partition(".")
    shape = re.match(r"([a-z]+)(?:-[0-9]+tb)?([0-9]*)", family)
    facts = {
        "category": shape[1] if shape else None,
        "generation": (shape[2] if shape else None) or None,
        "family": family,
        "size": size,
        "cpu": row["vcpu"],
        "memory": row["memory_mib"],
        "hypervisor": "" if row.get("bare_metal") else "nitro",
        "network-bandwidth": row.get("network_mbps"),
        "local-nvme": row.get("local_nvme_gb"),
    }
    for kind in ("gpu", "accelerator"):
        if device := row.get(kind):
            facts |= {
                f"{kind}-name": device["model"],
                f"{kind}-manufacturer": device["manufacturer"],
                f"{kind}-count": device["count"],
                f"{kind}-memory": device.get("memory_mib"),
            }
    found = {PREFIX + key: str(value) for key, value in facts.items() if value is not None}
    return found | {
        "node.kubernetes.io/instance-type": row["name"],
        "kubernetes.io/arch": row["arch"],
        "kubernetes.io/os": "linux",
    }


def extended(row: Row, extra: dict[str, dict[str, str]]) -> dict[str, int]:
    """Resources with a slash in their name: all of them are allocatable."""
    if documented := extra.get("allocatable"):
        return {name: int(amount) for name, amount in documented.items() if "/" in name}
    gpu = row.get("gpu") or {}
    return {f"{gpu['manufacturer']}.com/gpu": gpu["schedulable"]} if gpu.get("schedulable") else {}


def capacity(row: Row, extra: dict[str, dict[str, str]]) -> dict[str, int]:
    """What Karpenter expects a node to report: 7.5 % of memory goes to the machine itself.

    On arm64 another 64 MiB is set aside first (karpenter-provider-aws pkg/providers/instancetype).
    """
    memory = row["memory_mib"] - (64 if row["arch"] == "arm64" else 0)
    return {
        "cpu": row["vcpu"] * 1000,
        "memory": (memory - math.ceil(memory * 0.075)) * MIB,
        "pods": row["pods_max"],
        "ephemeral-storage": EPHEMERAL_CAPACITY,
        **extended(row, extra),
    }


def allocatable(row: Row, extra: dict[str, dict[str, str]]) -> dict[str, int]:
    return {
        "cpu": row["allocatable"]["cpu_milli"],
        "memory": row["allocatable"]["memory_mib"] * MIB,
        "pods": row["pods_max"],
        "ephemeral-storage": EPHEMERAL_ALLOCATABLE,
        **extended(row, extra),
    }


def columns(tables: list[dict[str, int]]) -> dict[str, list[int]]:
    names = sorted({name for table in tables for name in table})
    return {name: [table.get(name, 0) for table in tables] for name in names}


def label_columns(tables: list[dict[str, str]]) -> dict[str, dict[str, list[Any]]]:
    result: dict[str, dict[str, list[Any]]] = {}
    for key in sorted({key for table in tables for key in table}):
        values = sorted({table[key] for table in tables if key in table})
        codes = {value: code for code, value in enumerate(values)}
        result[key] = {
            "values": values,
            "of": [codes[table[key]] if key in table else -1 for table in tables],
        }
    return result


def pack_region(region: str, rows: list[Row], positions: dict[str, int]) -> dict[str, Any]:
    rows = sorted(rows, key=lambda row: positions[row["name"]])
    by_zone = [row.get("spot_by_zone") or {} for row in rows]
    zone_ids = sorted({zone for prices in by_zone for zone in prices})
    return {
        "types": [positions[row["name"]] for row in rows],
        "zoneIds": zone_ids,
        "zoneNames": [region + letter for letter in LETTERS.get(region, "abcdefgh")[: len(zone_ids)]],
        "onDemand": [checked(row.get("on_demand_usd_per_hour"), row) for row in rows],
        "onDemandAsOf": dates(row.get("on_demand_asof") for row in rows),
        "spot": {
            zone: [checked(prices.get(zone), row) for prices, row in zip(by_zone, rows, strict=True)]
            for zone in zone_ids
        },
        "spotMedian": [
            round(statistics.median(prices.values()), 6) if prices else None for prices in by_zone
        ],
        "spotAsOf": dates(row.get("spot_asof") for row in rows),
    }


def checked(price: float | None, row: Row) -> float | None:
    if price is not None and not (math.isfinite(price) and price >= 0):
        sys.exit(f"{row['region']} {row['name']}: price {price!r} must be a finite number, 0 or more")
    return price


def dates(found: Iterable[str | None]) -> str:
    known = sorted({date for date in found if date})
    return known[0] if len(known) == 1 else " to ".join(known[:1] + known[-1:])


if __name__ == "__main__":
    sys.exit(main())
