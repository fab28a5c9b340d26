"""Machines of other clusters, as written in a contract and in the ConfigMaps of its clusters."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from karpool.model.catalogue.files import PROVIDERS
from karpool.model.contracts.contract import BilledKind, Fleet
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import ON_DEMAND, RESERVED, SPOT
from karpool.model.kubernetes.meta import Wire

CAPACITY_TYPES = (ON_DEMAND, SPOT, RESERVED)
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class WrittenMachines(Wire, frozen=True, forbid_unknown_fields=True):
    """Machines of another cluster. `rate` is USD per hour after discounts, without commitments."""

    type: str
    family: str
    provider: str
    region: str
    zone: str
    count: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    rate: Amount
    cpus: Amount
    capacity_type: str = ON_DEMAND


def machines_of(parent: str, written: Sequence[WrittenMachines]) -> dict[BilledKind, int]:
    """Parse the machines. Raises Invalid, which names the path."""
    machines: Counter[BilledKind] = Counter()
    for index, entry in enumerate(written):
        path = f"{parent}[{index}]"
        if entry.provider not in PROVIDERS:
            raise Invalid(f"{path}.provider", entry.provider, f"must be one of {', '.join(PROVIDERS)}")
        if entry.capacity_type not in CAPACITY_TYPES:
            reason = f"must be one of {', '.join(CAPACITY_TYPES)}"
            raise Invalid(f"{path}.capacityType", entry.capacity_type, reason)
        place = entry.provider, entry.region, entry.zone
        kind = BilledKind(entry.cpus, entry.type, entry.family, *place, entry.capacity_type, entry.rate)
        machines[kind] += entry.count
    return dict(machines)


def written_machines(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the machines in the form of `elsewhere`."""
    return [
        msgspec.to_builtins(
            WrittenMachines(
                kind.type,
                kind.family,
                kind.provider,
                kind.region,
                kind.zone,
                count,
                kind.rate,
                kind.cpus,
                kind.capacity_type,
            )
        )
        for kind, count in sorted(fleet.items())
        if count > 0
    ]
