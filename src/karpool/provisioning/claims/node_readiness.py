"""Whether a requested node can be used: not when it is Ready, but when its devices are there.

Kubelets report devices as zero until the device plugin has registered, which may be minutes after Ready. The
state of a device allocator comes later and is checked elsewhere. Pure.
"""

from collections.abc import Mapping

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import DISRUPTED, INITIALIZED, NODEPOOL, CompiledPool
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.resources import show_amount

EMPTINESS_MARGIN_SECONDS = 60.0


def readiness(node: Node | None, expected: Mapping[str, int]) -> Infeasible[LaunchReason] | None:
    """Return the first thing that the node lacks; None: it can be used.

    `expected` are the resources that must be allocatable.
    """
    if node is None:
        return Infeasible(LaunchReason.NODE_MISSING, "there is no such node")
    if node.metadata.deletion_timestamp is not None:
        return Infeasible(LaunchReason.NODE_GOING, f"node {node.name} is being deleted")
    taints = node.spec.taints or ()
    if any(taint.key == DISRUPTED.key for taint in taints):
        return Infeasible(LaunchReason.NODE_GOING, f"node {node.name} is being disrupted by Karpenter")
    if not node.is_ready:
        return Infeasible(LaunchReason.NODE_NOT_READY, f"node {node.name} is not Ready")
    if NODEPOOL in node.labels and node.labels.get(INITIALIZED) != "true":
        return Infeasible(
            LaunchReason.NODE_NOT_INITIALIZED,
            f"node {node.name} is Ready, but Karpenter has not initialised it",
        )
    try:
        shown = allocatable(node)
    except Invalid as error:
        return Infeasible(LaunchReason.DEVICES_MISSING, f"node {node.name}: {error}")
    for name, units in sorted(expected.items()):
        have = shown.get(name, 0)
        if have < units:
            amounts = f"{show_amount(name, have)} of {show_amount(name, units)}"
            return Infeasible(LaunchReason.DEVICES_MISSING, f"node {node.name} offers {amounts} {name}")
    return None


def emptiness_warning(pool: CompiledPool, hold_seconds: float) -> str | None:
    """Return why new nodes of a pool may be removed before they are used; None if they will not.

    A node is empty between the end of the smart pod and the start of the workload.
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
        f"NodePool {pool.name}: consolidateAfter is {text}: a new node may be removed before "
        f"its workload starts; set it to {needed:.0f}s or more"
    )
