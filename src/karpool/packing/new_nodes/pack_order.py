"""In which order pods are packed, and which planned node each of them joins first.

Karpenter takes the pod with the most processors first, and the node with the fewest pods. Where pods that
must stand apart decide how many nodes there are, other orders leave less of them unused: by the larger of
a pod's shares of all that is asked for, onto the same nodes or onto the one with the least room left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from karpool.model.resources import CPU, MEMORY
from karpool.packing.new_nodes.pack_result import PendingPod


@dataclass(frozen=True, slots=True)
class PackOrder:
    """`by_share`: the largest share first, not the most processors; `tightest`: onto the fullest node."""

    by_share: bool = False
    tightest: bool = False


KARPENTER = PackOrder()
CHEAPEST = (KARPENTER, PackOrder(by_share=True), PackOrder(by_share=True, tightest=True))


def placing_order(pod: PendingPod) -> tuple[int, int, str, str, str]:
    """Sorts pods as Karpenter takes them: the largest first, then the oldest."""
    cpu, memory = _size(pod)
    return -cpu, -memory, pod.created, pod.uid, pod.name


class PodSizes:
    """What pods that wait ask for, each and together."""

    def __init__(self, pods: Sequence[PendingPod]) -> None:
        self._sizes = [_size(pod) for pod in pods]
        cpu, memory = (sum(column) for column in zip(*self._sizes, strict=True)) if pods else (1, 1)
        self.scale = 1 / max(cpu, 1), 1 / max(memory, 1)

    def in_order(self, order: PackOrder) -> list[int]:
        """The pods, by their place in Karpenter's order, in which they are."""
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
