"""How many replicas at most the promised ones push aside, without knowing any node.

For servers that do not take promises off themselves. One promised pod on a node costs
that node at most as many replicas as the largest ratio of what both ask for, rounded up,
and at least its slot; so the bound holds whatever nodes there are, and is exact for
replicas of the same kind.
"""

from collections.abc import Iterable, Sequence

from karpool.model.karmada.replica_requirements import NO_SHAPE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.scheduler.promises.promise import Amounts, Promise


def displaced(promised: Iterable[tuple[Promise, Amounts]], asked: Sequence[PodShape]) -> int:
    """Replicas of one shape, or sets of several, that may have to go; a set needs every one of its pods."""
    known: dict[PodShape, int] = {}
    total = 0
    for promise, amounts in promised:
        for wanted, replicas in zip(promise.wanted.requirements, amounts, strict=True):
            shape = NO_SHAPE if wanted is None else wanted.shape
            if shape not in known:
                known[shape] = sum(_of_one(shape, pod_shape) for pod_shape in asked)
            total += replicas * known[shape]
    return total


def _of_one(promised: PodShape, asked: PodShape) -> int:
    takes = dict(promised.requests)
    ratios = (-(-takes.get(name, 0) // units) for name, units in asked.requests if units > 0)
    return max(1, max(ratios, default=1))
