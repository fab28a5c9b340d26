"""How many complete sets of several components fit on existing, planned and new nodes."""

from collections.abc import Mapping, Sequence

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.first_fit import NodeFilling, PodGroup
from karpool.packing.new_nodes.node_plan import NodePlan
from karpool.packing.new_nodes.pack_order import placing_order
from karpool.packing.new_nodes.pack_result import PendingPod

SETS_MAX = 100_000
# Up to this many sets the count is exact. Above it, the count may be low by one in this many sets: large
# counts need no exact answer, and halving the error means placing all sets once more.
_PRECISION = 256


def complete_sets(
    groups: Sequence[PodGroup],
    plan: NodePlan,
    rest: Sequence[NodeFilling] = (),
    begun: Mapping[PodShape, int] | None = None,
) -> int:
    """Return the most sets whose pods all fit when placed at once, as Karpenter would place them.

    `rest` are existing nodes, or nodes that are starting; `begun` are pods of a first set that are already
    placed. Components share nodes, and components of one shape form one group. The result is always a number
    that was placed. Largest-first placing is not monotone, so a larger number may be possible.
    """
    search = _Search(_merged(groups), plan, rest, begun or {})
    if not search.size:
        return 0
    sets = most = search.bound()
    gap = 1
    while sets > 0 and (placed := search.placed(sets)) < search.wanted(sets):
        most = sets - 1
        sets = max(min(sets - gap, placed // search.size), 0)  # sets of the placed pods
        gap *= 2
    while most - sets > sets // _PRECISION:
        middle = (sets + most + 1) // 2
        if search.placed(middle) == search.wanted(middle):
            sets = middle
        else:
            most = middle - 1
    return sets


class _Search:
    def __init__(
        self,
        groups: Sequence[PodGroup],
        plan: NodePlan,
        rest: Sequence[NodeFilling],
        begun: Mapping[PodShape, int],
    ) -> None:
        self._groups = groups
        self._plan = plan
        self._rest = rest
        self._begun = begun
        self.size = sum(group.replicas for group in groups)

    def bound(self) -> int:
        """Return an upper bound: the room for each component alone."""
        return min(self._alone(group) for group in self._groups)

    def _alone(self, group: PodGroup) -> int:
        placed = self._place([PodGroup(group.shape, SETS_MAX * group.replicas)])
        return (placed + self._begun.get(group.shape, 0)) // group.replicas

    def wanted(self, sets: int) -> int:
        """Return how many pods this many sets still need."""
        return sum(group.replicas for group in self._still(sets))

    def placed(self, sets: int) -> int:
        """Return how many of them fit."""
        return self._place(self._still(sets))

    def _still(self, sets: int) -> list[PodGroup]:
        return [
            PodGroup(group.shape, max(0, group.replicas * sets - self._begun.get(group.shape, 0)))
            for group in self._groups
        ]

    def _place(self, groups: Sequence[PodGroup]) -> int:
        fillings = [filling.rest() for filling in self._rest]
        plan = self._plan.copy()
        placed = 0
        for group in groups:
            left = group.replicas
            for filling in fillings:
                left -= filling.place(PodGroup(group.shape, left)) if filling is not None and left else 0
            left -= plan.place(group.shape, left)
            placed += group.replicas - left
        return placed


def _merged(groups: Sequence[PodGroup]) -> list[PodGroup]:
    """Return one group for each shape, in the order in which Karpenter places them."""
    replicas: dict[PodShape, int] = {}
    for group in groups:
        if group.replicas:
            replicas[group.shape] = replicas.get(group.shape, 0) + group.replicas
    merged = [PodGroup(shape, count) for shape, count in replicas.items()]
    return sorted(merged, key=lambda group: placing_order(PendingPod("", group.shape)))
