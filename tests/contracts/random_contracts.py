"""Random fleets and contracts of one AWS region, as they are written."""

from random import Random
from typing import Any

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.catalogue.files import load_shipped

REGION = "eu-central-1"
ZONES = ("eu-central-1a", "eu-central-1b")
CPUS = {"large": 2, "xlarge": 4, "2xlarge": 8}
FAMILIES = ("m5", "c5", "r5")
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
    return {"format": "karpool-contract/1", "discounts": discounts, "commitments": commitments}


def machine(
    catalogue: Catalogue, name: str, zone: str, kind: str, overlay: float | None = None
) -> dict[str, Any]:
    return {
        "type": name,
        "family": name.partition(".")[0],
        "cpus": CPUS[name.partition(".")[2]],
        "provider": "aws",
        "region": REGION,
        "zone": zone,
        "capacity_type": kind,
        "price": catalogue.price(name, zone, kind) if overlay is None else overlay,
        "overlaid": overlay is not None,
    }
