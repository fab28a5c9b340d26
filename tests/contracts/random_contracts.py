"""Random fleets and contracts of one AWS region, as they are written."""

from random import Random
from typing import Any

import yaml

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.catalogue.files import load_shipped

REGION = "eu-central-1"
ZONES = ("eu-central-1a", "eu-central-1b")
CPUS = {"large": 2, "xlarge": 4, "2xlarge": 8}
FAMILIES = ("m5", "c5", "r5")
# Seen from NOW of the calculator, 2026-08-01T12:00Z: for ever, begun, to begin, ended, about to end.
TERMS: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {},
    {"start": "2026-08-01"},
    {"start": "2026-08-02"},
    {"end": "2026-07-31"},
    {"end": "2026-08-01"},
    {"start": "2025-01-01T00:00:00Z", "end": "2026-08-01T12:00:00Z"},
)
TYPES = tuple(f"{family}.{size}" for family in FAMILIES for size in CPUS)


def few_types() -> Catalogue:
    shipped = load_shipped(REGION, zones=dict.fromkeys(ZONES))
    return Catalogue("aws", REGION, [shipped.types[name] for name in TYPES])


def written_contract(chance: Random) -> dict[str, Any]:
    """Every kind of agreement, none about the same machines as another of its kind."""
    discounts = [
        {"name": f"d-{family}", "families": [family], "percent": chance.choice((5, 12.5, 30))}
        for family in FAMILIES
        if chance.random() < 0.3
    ]
    commitments: list[dict[str, Any]] = []
    for name in TYPES:
        if chance.random() < 0.15:
            entry = {
                "name": f"r-{name}",
                "kind": "reservation",
                "types": [name],
                "count": chance.randint(1, 3),
            }
            if chance.random() < 0.3:
                entry["zones"] = [chance.choice(ZONES)]
            commitments.append(entry)
    commitments += [reserved_capacity(chance, name) for name in TYPES if chance.random() < 0.12]
    family = chance.choice(FAMILIES)
    if chance.random() < 0.4:
        commitments.append(
            {
                "name": "cud",
                "kind": "committed-use",
                "families": [family],
                "cpus": chance.choice((3, 6, 10, 16)),
            }
        )
    if chance.random() < 0.4:
        commitments.append(
            {
                "name": "instances",
                "kind": "instance-savings-plan",
                "families": [chance.choice(FAMILIES)],
                "regions": [REGION],
                "perHour": chance.choice((0.05, 0.2, 0.7)),
                "percent": chance.choice((20, 41)),
            }
        )
    if chance.random() < 0.6:
        commitments.append(
            {
                "name": "compute",
                "kind": "savings-plan",
                "provider": "aws",
                "perHour": chance.choice((0.1, 0.4, 1.2, 3)),
                "percent": chance.choice((17, 28)),
                "usedElsewhere": chance.choice((0, 0, 0.05)),
            }
        )
    for entry in (*discounts, *commitments):
        entry.update(chance.choice(TERMS))
    return {"format": "karpool-contract/1", "discounts": discounts, "commitments": commitments}


def reserved_capacity(chance: Random, name: str) -> dict[str, Any]:
    count = chance.randint(1, 4)
    return {
        "name": f"capacity-{name}",
        "kind": "capacity-reservation",
        "types": [name],
        "zones": [chance.choice(ZONES)],
        "regions": [REGION],
        "count": count,
        "usedElsewhere": 1 if count == 4 else 0,
        "perHour": round(count * chance.choice((0.115, 0.2)), 6),
        "targeted": chance.random() < 0.3,
        "placeCpus": CPUS[name.partition(".")[2]],  # for the calculator alone
    }


def as_file(written: dict[str, Any]) -> bytes:
    entries = [
        {key: value for key, value in entry.items() if key != "placeCpus"} for entry in written["commitments"]
    ]
    return yaml.safe_dump({**written, "commitments": entries}).encode()


def machine(
    catalogue: Catalogue, name: str, zone: str, kind: str, overlay: float | None = None
) -> dict[str, Any]:
    price = catalogue.price(name, zone, kind) if overlay is None else overlay
    if kind == "reserved":
        price = 0.0  # reserved capacity is billed by its places, not by the machines in it
    return {
        "type": name,
        "family": name.partition(".")[0],
        "cpus": CPUS[name.partition(".")[2]],
        "provider": "aws",
        "region": REGION,
        "zone": zone,
        "capacity_type": kind,
        "price": price,
        "overlaid": overlay is not None,
    }
