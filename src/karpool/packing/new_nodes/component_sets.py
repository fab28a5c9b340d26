"""How many complete sets of several components nodes take: some that are there, then planned and new ones."""

from collections.abc import Mapping, Sequence

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.first_fit import NodeFilling, PodGroup
from karpool.packing.new_nodes.node_plan import NodePlan
from karpool.packing.new_nodes.pack_order import placing_order
from karpool.packing.new_nodes.pack_result import PendingPod

SETS_MAX = 100_000
# Up to so many sets are counted exactly. Of more, one in so many may be missed: nobody asks for hundreds of
# sets to the last one, and each halving of the error places all of them once more.
_PRECISION = 256


def complete_sets(
    groups: Sequence[PodGroup],
    plan: NodePlan,
    rest: Sequence[NodeFilling] = (),
    begun: Mapping[PodShape, int] | None = None,
) -> int:
    """The most sets of which every pod found room when all were placed at once, as Karpenter would.

    `rest` are nodes that are there, or coming; `begun` are pods of a first set that have a place already.
    Components share nodes, and those of one shape are one group. Placing is what decides: an
    answer is always a number that was placed. Largest first is not monotone, so now and then a
    larger number could be placed, too.
    """
    search = _Search(_merged(groups), plan, rest, begun or {})
    if not search.size:
        return 0
    sets = most = search.bound()
    gap = 1
    while sets > 0 and (placed := search.placed(sets)) < search.wanted(sets):
        most = sets - 1
        sets = max(min(sets - gap, placed // search.size), 0)  # what fills nodes at this rate
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
        """No more sets than the room for each component alone."""
        return min(self._alone(group) for group in self._groups)

    def _alone(self, group: PodGroup) -> int:
        placed = self._place([PodGroup(group.shape, SETS_MAX * group.replicas)])
        return (placed + self._begun.get(group.shape, 0)) // group.replicas

    def wanted(self, sets: int) -> int:
        """How many pods so many sets still need."""
        return sum(group.replicas for group in self._still(sets))

    def placed(self, sets: int) -> int:
        """How many of them find room."""
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
    """One group for each shape, in the order in which Karpenter places them."""
    replicas: dict[PodShape, int] = {}
    for group in groups:
        if group.replicas:
            replicas[group.shape] = replicas.get(group.shape, 0) + group.replicas
    merged = [PodGroup(shape, count) for shape, count in replicas.items()]
    return sorted(merged, key=lambda group: placing_order(PendingPod("", group.shape)))
