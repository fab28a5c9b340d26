"""Priority classes, and the priority of a pod that does not carry it yet."""

from collections.abc import Mapping

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Int32, WireObject
from karpool.model.kubernetes.pod import Pod

# The API server creates these two itself.
SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class PriorityClass(WireObject, frozen=True):
    value: Int32 = 0
    global_default: bool = False
    preemption_policy: str | None = None


def priority_of(pod: Pod, classes: Mapping[str, PriorityClass]) -> int:
    """What admission gave the pod, or would give it; raises Invalid for a class that does not exist."""
    if pod.spec.priority is not None:
        return pod.spec.priority
    name = pod.spec.priority_class_name
    if not name:
        # With several defaults, which only a race can leave behind, the lowest one counts.
        return min(
            (priority_class.value for priority_class in classes.values() if priority_class.global_default),
            default=0,
        )
    if name in classes:
        return classes[name].value
    if name in SYSTEM_CLASSES:
        return SYSTEM_CLASSES[name]
    raise Invalid("spec.priorityClassName", name, "is a PriorityClass that does not exist; create it first")


def is_critical(pod: Pod) -> bool:
    """Such pods are drained last."""
    return pod.spec.priority_class_name in SYSTEM_CLASSES
