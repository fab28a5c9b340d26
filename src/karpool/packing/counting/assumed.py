"""Places workloads that are promised but have no pods yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.first_fit import NodeFilling, PodGroup
from karpool.packing.tables.room import PodPlacement, Room


@dataclass(frozen=True, slots=True)
class AssumedDeduction:
    """`room` has the assumed workloads in place; `placements` says where they are.

    `left` holds the replicas of each workload that found no node.
    """

    room: Room
    left: tuple[tuple[PodGroup, ...], ...] = ()
    placements: tuple[PodPlacement, ...] = ()


def assume(
    room: Room, workloads: Iterable[Sequence[PodGroup]], *, topology: bool = False
) -> AssumedDeduction:
    placed, left = placed_first_fit(room, workloads, topology=topology)
    return AssumedDeduction(room.minus(placed), left, placed)


def placed_first_fit(
    room: Room, workloads: Iterable[Sequence[PodGroup]], *, topology: bool = False
) -> tuple[tuple[PodPlacement, ...], tuple[tuple[PodGroup, ...], ...]]:
    """Place each workload once, first fit, in order; return the placements and what is left of each workload.

    Like Karmada, a workload that does not fit keeps the replicas placed so far, and the components after the
    first failed one are not tried.
    """
    filling = NodeFilling(room, topology=topology)
    left: list[tuple[PodGroup, ...]] = []
    # Full shapes, by identity: hashing a shape takes longer than placing it.
    full: dict[int, PodShape] = {}
    for groups in workloads:
        for index, group in enumerate(groups):
            rest = group.replicas
            if id(group.shape) not in full:
                rest -= filling.place(group)
            if rest:
                if not topology:  # with topology, a closed node may open again
                    full[id(group.shape)] = group.shape
                first = group if rest == group.replicas else PodGroup(group.shape, rest)
                left.append((first, *groups[index + 1 :]))
                break
    return filling.placements(), tuple(left)
