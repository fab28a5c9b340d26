"""One request, put to one moment of one cluster.

What several plugins need is worked out once, here, when the first asks: the room
that is left after assumed workloads, what of those found no place, and what the
nodes that exist could take. Everything is a function of the snapshot and the
request; nothing here waits or changes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from karpool.model.karmada.replica_requirements import Component
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import FirstFitResult, NodeFilling, first_fit
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.tables.room import PodPlacement, Room
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload, ComponentSetsRequest, EstimateRequest


def group_of(component: Component) -> Group:
    """The same, for the packing kernel."""
    return Group(component.shape, component.replicas)


@dataclass(frozen=True, slots=True)
class AssumedDeduction:
    """`room`: the nodes with assumed workloads in place, `placements`: where they are.

    `left`: what of each found no node.
    """

    room: Room
    left: tuple[tuple[Group, ...], ...] = ()
    placements: tuple[PodPlacement, ...] = ()


@dataclass(frozen=True)
class EstimateQuestion:
    """`assumed` is what is to be deducted: nothing, unless overcommit protection is on.

    `arrived` says what of each was on a node, and is not deducted any more.

    `topology` asks for spread constraints and pod affinity to be honoured. Karmada's requests do
    not carry any, and its answers ignore those of other pods.
    """

    request: EstimateRequest
    snapshot: Room
    assumed: Sequence[AssumedWorkload] = ()
    topology: bool = False
    arrived: Sequence[ArrivedReplicas] = ()

    @property
    def for_sets(self) -> bool:
        return isinstance(self.request, ComponentSetsRequest)

    @cached_property
    def deduction(self) -> AssumedDeduction:
        if not self.assumed:
            return AssumedDeduction(self.snapshot)
        workloads = ([group_of(component) for component in workload.components] for workload in self.assumed)
        return deducted(self.snapshot, workloads, topology=self.topology)

    @property
    def room(self) -> Room:
        return self.deduction.room

    @cached_property
    def existing_sets(self) -> FirstFitResult:
        """The sets that the nodes that exist take; none of a request for replicas."""
        components = self.request.components if isinstance(self.request, ComponentSetsRequest) else ()
        return first_fit(self.room, map(group_of, components), topology=self.topology)

    @cached_property
    def existing(self) -> int:
        """How many replicas, or sets, the nodes that exist take; exact, however many."""
        if isinstance(self.request, ComponentSetsRequest):
            return self.existing_sets.sets
        return count(self.room, self.request.shape, topology=self.topology).total


def deducted(
    snapshot: Room, workloads: Iterable[Sequence[Group]], *, topology: bool = False
) -> AssumedDeduction:
    """As if each workload were placed once, first fit, in order.

    A workload that does not fit keeps what it got until the first component that failed, and
    nothing is tried after that, as Karmada has it; the rest is `left`.
    """
    filling = NodeFilling(snapshot, topology=topology)
    left: list[tuple[Group, ...]] = []
    for groups in workloads:
        for index, group in enumerate(groups):
            rest = group.replicas - filling.place(group)
            if rest:
                left.append((Group(group.shape, rest), *groups[index + 1 :]))
                break
    placed = filling.placements()
    return AssumedDeduction(snapshot.minus(placed), tuple(left), placed)
