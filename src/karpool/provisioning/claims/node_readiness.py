"""Whether a node that was asked for can be used: not when it is Ready, but when its devices are there.

Kubelets report devices as zero until the device plugin has registered, which may be
minutes after Ready. What an allocator of devices says comes later still, and is its own. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import DISRUPTED, INITIALIZED, NODEPOOL, CompiledPool
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.resources import show_amount

EMPTINESS_MARGIN_SECONDS = 60.0


class Lack(StrEnum):
    """What a node lacks; the first in this order."""

    NODE = "NodeMissing"
    LIFE = "NodeGoing"  # deleted, interrupted or disrupted: it will not come up any more
    READY = "NodeNotReady"
    INITIALIZED = "NodeNotInitialized"
    DEVICES = "DevicesMissing"


@dataclass(frozen=True, slots=True)
class Readiness:
    lack: Lack | None
    message: str = ""

    @property
    def is_ready(self) -> bool:
        return self.lack is None


READY = Readiness(None)


def readiness(node: Node | None, expected: Mapping[str, int]) -> Readiness:
    """`expected`: at least these amounts must be allocatable."""
    if node is None:
        return Readiness(Lack.NODE, "there is no such node")
    if node.metadata.deletion_timestamp is not None:
        return Readiness(Lack.LIFE, f"node {node.name} is being deleted")
    taints = node.spec.taints or ()
    if any(taint.key == DISRUPTED.key for taint in taints):
        return Readiness(Lack.LIFE, f"node {node.name} is being disrupted by Karpenter")
    if not node.is_ready:
        return Readiness(Lack.READY, f"node {node.name} is not Ready")
    if NODEPOOL in node.labels and node.labels.get(INITIALIZED) != "true":
        return Readiness(Lack.INITIALIZED, f"node {node.name} is Ready, but Karpenter has not initialised it")
    try:
        shown = allocatable(node)
    except Invalid as error:
        return Readiness(Lack.DEVICES, f"node {node.name}: {error}")
    for name, units in sorted(expected.items()):
        have = shown.get(name, 0)
        if have < units:
            amounts = f"{show_amount(name, have)} of {show_amount(name, units)}"
            return Readiness(Lack.DEVICES, f"node {node.name} offers {amounts} {name}")
    return READY


def emptiness_warning(pool: CompiledPool, hold_seconds: float) -> str | None:
    """Why new nodes of a pool may be removed before they are used; None when they will not.

    Between the end of the smart pod and the start of the workload a node is empty.
    """
    text = pool.disruption.consolidate_after
    try:
        seconds = durations.seconds_or_never(text)
    except Invalid as error:
        return f"NodePool {pool.name}: consolidateAfter: {error}"
    needed = hold_seconds + EMPTINESS_MARGIN_SECONDS
    if seconds is None or seconds >= needed:
        return None
    return (
        f"NodePool {pool.name}: consolidateAfter is {text}: a new node may be removed before its workload "
        f"has arrived; set it to {needed:.0f}s or more"
    )
