"""CapacityBuffers: room that an autoscaler keeps free for virtual pods.

v1alpha1 and v1beta1 have the same content. The number of pods follows cluster-autoscaler and Karpenter: the
larger of `replicas` and `percentage` of a workload, at most what `limits` hold; `limits` alone if there is
neither.
"""

from collections.abc import Mapping

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Condition, Int32, Wire, WireObject, condition
from karpool.model.kubernetes.pod import QuantityMap

ACTIVE_CAPACITY = "buffer.x-k8s.io/active-capacity"  # also where no strategy is named
READY_FOR_PROVISIONING = "ReadyForProvisioning"
# Per buffer. A larger number is a mistake, and would slow down planning.
PODS_MAX = 5000


class TemplateReference(Wire, frozen=True):
    name: str = ""


class ScalableReference(Wire, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class CapacityBufferSpec(Wire, frozen=True):
    provisioning_strategy: str | None = None
    pod_template_ref: TemplateReference | None = None
    scalable_ref: ScalableReference | None = None
    replicas: Int32 | None = None
    percentage: Int32 | None = None
    limits: QuantityMap | None = None


class CapacityBufferStatus(Wire, frozen=True):
    """The result of its controller; it may have created the template from a workload."""

    replicas: Int32 | None = None
    pod_template_ref: TemplateReference | None = None
    conditions: list[Condition] | None = None


class CapacityBuffer(WireObject, frozen=True):
    spec: CapacityBufferSpec = CapacityBufferSpec()
    status: CapacityBufferStatus = CapacityBufferStatus()

    @property
    def keeps_room(self) -> bool:
        """Whether it stands for pods; other strategies reserve something else."""
        return self.spec.provisioning_strategy in (None, "", ACTIVE_CAPACITY)

    @property
    def is_refused(self) -> bool:
        """Whether its controller has said that it reserves no room for it."""
        ready = condition(self.status.conditions, READY_FOR_PROVISIONING)
        return ready is not None and ready.status == "False"


def check_buffer(buffer: CapacityBuffer) -> None:
    """Raise Invalid if the buffer contradicts itself."""
    spec = buffer.spec
    if (spec.pod_template_ref is None) == (spec.scalable_ref is None):
        have = "both" if spec.scalable_ref is not None else "neither"
        raise Invalid("spec", have, "must have one of podTemplateRef and scalableRef")
    for name, value in (("replicas", spec.replicas), ("percentage", spec.percentage)):
        if value is not None and value < 0:
            raise Invalid(f"spec.{name}", value, "must not be negative")
    if spec.percentage is not None and spec.scalable_ref is None:
        raise Invalid("spec.percentage", spec.percentage, "is of a workload, and scalableRef names none")
    if spec.replicas is None and spec.percentage is None and not spec.limits:
        raise Invalid("spec", "no size", "must have replicas, percentage or limits")


def buffer_pods(buffer: CapacityBuffer, requests: Mapping[str, int], scale: int) -> int:
    """Return how many pods it stands for; `scale` is the replicas of its workload. Raises Invalid."""
    check_buffer(buffer)
    spec, sizes = buffer.spec, list[int]()
    if spec.replicas is not None:
        sizes.append(spec.replicas)
    if spec.percentage is not None:
        sizes.append(-(-scale * spec.percentage // 100))
    try:
        limits = resources.parse_all(spec.limits)
    except Invalid as error:
        raise error.at("spec.limits") from None
    bounds = [max(0, units) // requests[name] for name, units in limits.items() if requests.get(name, 0) > 0]
    replicas = min([max(sizes), *bounds]) if sizes else min(bounds, default=0)
    if buffer.status.replicas is not None:
        replicas = max(replicas, buffer.status.replicas)  # computed by its controller
    if replicas > PODS_MAX:
        raise Invalid("spec.replicas", replicas, f"must not come to more than {PODS_MAX} pods")
    return replicas
