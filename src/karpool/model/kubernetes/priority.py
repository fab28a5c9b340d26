"""Priority classes, and system-critical pods."""

from karpool.model.kubernetes.meta import Int32, WireObject
from karpool.model.kubernetes.pod import Pod

# The API server creates these two itself.
SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class PriorityClass(WireObject, frozen=True):
    value: Int32 = 0
    global_default: bool = False
    preemption_policy: str | None = None


def is_critical(pod: Pod) -> bool:
    """Whether a pod is system-critical; such pods are drained last."""
    return pod.spec.priority_class_name in SYSTEM_CLASSES
