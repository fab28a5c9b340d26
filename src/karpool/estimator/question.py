"""One request, put to one moment of one cluster.

What several plugins need is worked out once, here, when the first asks: the room
that is left after assumed workloads, what of those found no place, and what the
nodes that exist could take. Everything is a function of the snapshot and the
request; nothing here waits or changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from karpool.cluster.snapshot import Snapshot
from karpool.model.karmada.replica_requirements import Component
from karpool.packing.counting.assumed import AssumedDeduction
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import FirstFitResult, first_fit
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.tables.room import Room
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload, ComponentSetsRequest, EstimateRequest


def group_of(component: Component) -> Group:
    """The same, for the packing kernel."""
    return Group(component.shape, component.replicas)


@dataclass(frozen=True)
class EstimateQuestion:
    """`assumed` is what is to be deducted: nothing, unless overcommit protection is on.

    `arrived` says what of each was on a node, and is not deducted any more.

    `topology` asks for spread constraints and pod affinity to be honoured. Karmada's requests do
    not carry any, and its answers ignore those of other pods.
    """

    request: EstimateRequest
    snapshot: Snapshot
    assumed: Sequence[AssumedWorkload] = ()
    topology: bool = False
    arrived: Sequence[ArrivedReplicas] = ()

    @property
    def for_sets(self) -> bool:
        return isinstance(self.request, ComponentSetsRequest)

    @cached_property
    def deduction(self) -> AssumedDeduction:
        if not self.assumed:
            return AssumedDeduction(self.snapshot.room)
        workloads = ([group_of(component) for component in workload.components] for workload in self.assumed)
        return self.snapshot.assume(workloads, topology=self.topology)

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
