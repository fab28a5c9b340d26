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
from karpool.estimator.pending_demand import without_topology
from karpool.model.karmada.replica_requirements import Component
from karpool.model.kubernetes.pod_shape import PodShape
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
    wanting: Sequence[tuple[int, ...]] = ()  # of each component assumed: replicas that wait for a node

    @property
    def for_sets(self) -> bool:
        return isinstance(self.request, ComponentSetsRequest)

    @cached_property
    def deduction(self) -> AssumedDeduction:
        if not self.assumed:
            return AssumedDeduction(self.snapshot.room)
        workloads = ([group_of(component) for component in workload.components] for workload in self.assumed)
        return self.snapshot.assume(workloads, topology=self.topology)

    @cached_property
    def promised(self) -> dict[PodShape, int]:
        """What is assumed, has no existing node, and is not among the pods that wait: it takes nodes to
        come after these. Equal shapes are equal, whosever they are."""
        promised: dict[PodShape, int] = {}
        for groups in self.deduction.left:
            for group in groups:
                shape = without_topology(group.shape)
                promised[shape] = promised.get(shape, 0) + group.replicas
        for workload, waiting in zip(self.assumed, self.wanting, strict=bool(self.wanting)):
            for component, replicas in zip(workload.components, waiting, strict=False):
                shape = without_topology(component.shape)
                if shape in promised:
                    promised[shape] = max(0, promised[shape] - replicas)
        return {shape: replicas for shape, replicas in promised.items() if replicas}

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
