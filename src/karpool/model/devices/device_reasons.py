"""Why an allocation was not made, as a value, and how many devices each filter dropped."""

from dataclasses import dataclass

from karpool.model.infeasible import Infeasible, Reason


class DeviceReason(Reason):
    POOL_NAME_EMPTY = "pool_name_empty"
    POOL_EMPTY = "pool_empty"
    NO_GPU_AFTER_FILTER = "no_gpu_after_filter"
    SAME_NODE_UNSATISFIED = "same_node_unsatisfied"
    NOT_ENOUGH_GPUS = "not_enough_gpus"
    NO_CANDIDATES = "no_candidates"
    QUOTA_EXCEEDED = "quota_exceeded"
    EXCEEDS_DEVICE = "exceeds_device"
    ISOLATION_LOCKED = "isolation_locked"
    ISOLATION_INCOMPATIBLE = "isolation_incompatible"
    PARTITION_CAP = "partition_cap"
    NO_PLACEMENT_SLOT = "no_placement_slot"
    INSUFFICIENT_TFLOPS = "insufficient_tflops"
    INSUFFICIENT_VRAM = "insufficient_vram"
    INSUFFICIENT_EXTENDED = "insufficient_extended"
    NO_TEMPLATE = "no_template"
    ALREADY_ALLOCATED = "already_allocated"
    ALREADY_ASSUMED = "already_assumed"
    NOT_ASSUMED = "not_assumed"
    GPU_COUNT_OUT_OF_RANGE = "gpu_count_out_of_range"
    BAD_GPU_INDICES = "bad_gpu_indices"
    BAD_REQUEST = "bad_request"
    UNKNOWN_GPU = "unknown_gpu"
    NO_AFFECTED_NODES = "no_affected_nodes"
    NOT_RECOVERED = "not_recovered"


@dataclass(frozen=True, slots=True)
class FilterStep:
    """The effect of one filter: the number of devices before and after it."""

    filter: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.filter} dropped {self.before - self.after} of {self.before}"


NoDevice = Infeasible[DeviceReason]

# Reasons that may pass with other pods, nodes or time, without a change of the request.
_MAY_PASS = frozenset(
    (
        DeviceReason.POOL_EMPTY,
        DeviceReason.NO_GPU_AFTER_FILTER,
        DeviceReason.SAME_NODE_UNSATISFIED,
        DeviceReason.NOT_ENOUGH_GPUS,
        DeviceReason.NO_CANDIDATES,
        DeviceReason.QUOTA_EXCEEDED,
        DeviceReason.ISOLATION_LOCKED,
        DeviceReason.PARTITION_CAP,
        DeviceReason.NO_PLACEMENT_SLOT,
        DeviceReason.INSUFFICIENT_TFLOPS,
        DeviceReason.INSUFFICIENT_VRAM,
        DeviceReason.INSUFFICIENT_EXTENDED,
        DeviceReason.NOT_RECOVERED,
    )
)


def no_device(
    reason: DeviceReason, detail: str, about: str = "", *, resolvable: bool | None = None
) -> NoDevice:
    """Return the reason. `about` is the resource of a quota or of a partition."""
    return Infeasible(
        reason, detail, about, resolvable=reason in _MAY_PASS if resolvable is None else resolvable
    )


def stable_code(infeasible: NoDevice) -> str:
    """Return the code for comparisons and metrics: `quota_exceeded:total.max.vram.request`."""
    return f"{infeasible.reason}:{infeasible.about}" if infeasible.about else str(infeasible.reason)
