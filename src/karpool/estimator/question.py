"""One request about one snapshot of one cluster.

Values that several plugins need are computed once, on first use: the free capacity after assumed workloads,
the assumed pods without a place, and what existing nodes could take. Everything is a function of the snapshot
and the request; nothing here waits or changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from karpool.cluster.aspects import Aspect
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.pending_demand import largest_first, without_topology
from karpool.model.karmada.replica_requirements import Component
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.assumed import AssumedDeduction
from karpool.packing.counting.count import FitCount, count
from karpool.packing.counting.first_fit import FirstFitResult, NodeFilling, first_fit
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.tables.room import PodPlacement, Room
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload, ComponentSetsRequest, EstimateRequest


def group_of(component: Component) -> Group:
    """The same, for the packing kernel."""
    return Group(component.shape, component.replicas)


@dataclass(frozen=True)
class EstimateQuestion:
    """`assumed` is what to deduct: nothing, unless overcommit protection is on.

    `arrived` says how many of each are on nodes, and are no longer deducted.

    `topology` asks for spread constraints and pod affinity to be honoured. Karmada's requests do not carry
    any, and its answers ignore those of other pods.
    """

    request: EstimateRequest
    snapshot: Snapshot
    assumed: Sequence[AssumedWorkload] = ()
    topology: bool = False
    arrived: Sequence[ArrivedReplicas] = ()
    wanting: Sequence[tuple[int, ...]] = ()  # per assumed component: pending replicas

    @property
    def for_sets(self) -> bool:
        return isinstance(self.request, ComponentSetsRequest)

    @property
    def shapes(self) -> list[PodShape]:
        """The requested shapes; of components those that have replicas."""
        if isinstance(self.request, ComponentSetsRequest):
            components = self.request.components
            return list(dict.fromkeys(component.shape for component in components if component.replicas))
        return [self.request.shape]

    @cached_property
    def deduction(self) -> AssumedDeduction:
        if not self.assumed:
            return AssumedDeduction(self.snapshot.room)
        workloads = ([group_of(component) for component in workload.components] for workload in self.assumed)
        return self.snapshot.assume(workloads, topology=self.topology)

    @cached_property
    def promised(self) -> dict[PodShape, int]:
        """Assumed replicas without an existing node that are not pending pods: they take future nodes after
        these. Equal shapes are merged.
        """
        totals: dict[int, tuple[PodShape, int]] = {}  # by identity: a lookup by value is slow
        for groups in self.deduction.left:
            for group in groups:
                _, replicas = totals.get(id(group.shape), (group.shape, 0))
                totals[id(group.shape)] = group.shape, replicas + group.replicas
        promised: dict[PodShape, int] = {}
        for whole, replicas in totals.values():
            shape = without_topology(whole)
            promised[shape] = promised.get(shape, 0) + replicas
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
        """The sets that existing nodes take; none for a request for replicas."""
        components = self.request.components if isinstance(self.request, ComponentSetsRequest) else ()
        return first_fit(self.room, map(group_of, components), topology=self.topology)

    @cached_property
    def existing_replicas(self) -> FitCount:
        """Where existing nodes take replicas; none for a request for sets."""
        shape = PodShape() if isinstance(self.request, ComponentSetsRequest) else self.request.shape
        return count(self.room, shape, topology=self.topology)

    @cached_property
    def existing(self) -> int:
        """How many replicas, or sets, existing nodes take; exact, however many."""
        return self.existing_sets.sets if self.for_sets else self.existing_replicas.total

    @cached_property
    def displaced_buffers(self) -> dict[PodShape, int]:
        """Pods of CapacityBuffers that existing nodes cannot hold besides what they could take.

        A new pod may take the capacity of a buffer on existing nodes, and the autoscaler launches new nodes
        for the buffer.
        """
        snapshot = self.snapshot
        if not snapshot.facts.aspects & Aspect.BUFFERS or not snapshot.buffers.shapes:
            return {}
        pods: dict[PodShape, int] = {}
        for buffer_shape in map(without_topology, snapshot.buffers.shapes.values()):
            pods[buffer_shape] = pods.get(buffer_shape, 0) + 1
        filling = NodeFilling(self._filled_room(), topology=False)
        left = {
            shape: pods[shape] - filling.place(Group(shape, pods[shape]))
            for shape in sorted(pods, key=largest_first)
        }
        return {shape: replicas for shape, replicas in left.items() if replicas}

    def _filled_room(self) -> Room:
        """Existing nodes, filled with all that they could take."""
        if isinstance(self.request, ComponentSetsRequest):
            return self.existing_sets.after
        per_node = enumerate(self.existing_replicas.per_node.tolist())
        shape = self.request.shape
        return self.room.minus(PodPlacement(row, shape, replicas) for row, replicas in per_node if replicas)
