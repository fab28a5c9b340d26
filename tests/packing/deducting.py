"""Rooms after workloads took their share of them."""

from collections.abc import Iterable

from karpool.packing.counting.first_fit import NodeFilling, PodGroup
from karpool.packing.tables.room import Room


def deduct(room: Room, workloads: Iterable[Iterable[PodGroup]], *, topology: bool = True) -> Room:
    """As if each workload were placed once, as far as it fits."""
    filling = NodeFilling(room, topology=topology)
    for components in workloads:
        filling.place_sets(components, bound=1)
    return filling.snapshot()
