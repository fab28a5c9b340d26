"""Workloads that are promised and not there yet, put in their places."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.first_fit import NodeFilling, PodGroup
from karpool.packing.tables.room import PodPlacement, Room


@dataclass(frozen=True, slots=True)
class AssumedDeduction:
    """`room`: the nodes with assumed workloads in place, `placements`: where they are.

    `left`: what of each found no node.
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
    """Where each workload goes, placed once, first fit, in order; and what of each is left.

    A workload that does not fit keeps what it got until the first component that failed, and
    nothing is tried after that, as Karmada has it.
    """
    filling = NodeFilling(room, topology=topology)
    left: list[tuple[PodGroup, ...]] = []
    # Shapes that no node takes any more, by identity: to look one up by value takes longer than to place it.
    full: dict[int, PodShape] = {}
    for groups in workloads:
        for index, group in enumerate(groups):
            rest = group.replicas
            if id(group.shape) not in full:
                rest -= filling.place(group)
            if rest:
                if not topology:  # with it, nodes may open again
                    full[id(group.shape)] = group.shape
                first = group if rest == group.replicas else PodGroup(group.shape, rest)
                left.append((first, *groups[index + 1 :]))
                break
    return filling.placements(), tuple(left)
