"""The order in which pods are packed, and the planned node that each pod joins first.

Karpenter takes the pod with the most CPU first, and the node with the fewest pods. If pods with anti-affinity
decide the number of nodes, other orders waste less: by the larger of a pod's shares of total CPU and memory,
onto the same nodes or onto the node with the least room left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from karpool.model.resources import CPU, MEMORY
from karpool.packing.new_nodes.pack_result import PendingPod


@dataclass(frozen=True, slots=True)
class PackOrder:
    """`by_share`: the largest share first, not the most CPU; `tightest`: onto the fullest node."""

    by_share: bool = False
    tightest: bool = False


KARPENTER = PackOrder()
CHEAPEST = (KARPENTER, PackOrder(by_share=True), PackOrder(by_share=True, tightest=True))


def placing_order(pod: PendingPod) -> tuple[int, int, str, str, str]:
    """Sort key of Karpenter's order: the largest pod first, then the oldest."""
    cpu, memory = _size(pod)
    return -cpu, -memory, pod.created, pod.uid, pod.name


class PodSizes:
    """The requests of pending pods, per pod and in total."""

    def __init__(self, pods: Sequence[PendingPod]) -> None:
        self._sizes = [_size(pod) for pod in pods]
        cpu, memory = (sum(column) for column in zip(*self._sizes, strict=True)) if pods else (1, 1)
        self.scale = 1 / max(cpu, 1), 1 / max(memory, 1)

    def in_order(self, order: PackOrder) -> list[int]:
        """Return the pods in this order, as indexes into Karpenter's order."""
        numbers = list(range(len(self._sizes)))
        if order.by_share:
            cpu, memory = self.scale
            numbers.sort(key=lambda pod: -max(self._sizes[pod][0] * cpu, self._sizes[pod][1] * memory))
        return numbers


def _size(pod: PendingPod) -> tuple[int, int]:
    cpu = memory = 0
    for name, units in pod.shape.requests:
        if name == CPU:
            cpu = units
        elif name == MEMORY:
            memory = units
    return cpu, memory
