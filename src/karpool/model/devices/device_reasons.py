"""Why an allocation was not made: a stable code, a sentence, and what was dropped where.

A refusal is an answer, not an exception. `helped_by_scale_up` says whether a new
node could change it: yes, no, or None when that depends on what the node would be.
"""

from dataclasses import dataclass
from enum import StrEnum

from karpool.model.devices.amounts import DeviceAmount


class DeviceReason(StrEnum):
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


# Where the answer does not depend on what the new node would be.
_SCALE_UP_HELPS = {
    DeviceReason.POOL_EMPTY: True,
    DeviceReason.PARTITION_CAP: True,
    DeviceReason.NO_PLACEMENT_SLOT: True,
    DeviceReason.INSUFFICIENT_TFLOPS: True,
    DeviceReason.INSUFFICIENT_VRAM: True,
    DeviceReason.INSUFFICIENT_EXTENDED: True,
    DeviceReason.NO_GPU_AFTER_FILTER: None,
    DeviceReason.SAME_NODE_UNSATISFIED: None,
    DeviceReason.NOT_ENOUGH_GPUS: None,
    DeviceReason.NO_CANDIDATES: None,
    DeviceReason.ISOLATION_LOCKED: None,
    DeviceReason.ISOLATION_INCOMPATIBLE: None,
}


@dataclass(frozen=True, slots=True)
class FilterStep:
    """What one filter did: so many devices came in, so many stayed."""

    filter: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.filter} dropped {self.before - self.after} of {self.before}"


@dataclass(frozen=True, slots=True)
class Refusal:
    code: DeviceReason
    message: str
    dropped: tuple[FilterStep, ...] = ()
    resource: str = ""  # of a quota, or of a partition
    unresolvable: bool = False  # waiting cannot help
    remaining: DeviceAmount | None = None  # what the device that is too small has left

    def __str__(self) -> str:
        steps = ", ".join(str(step) for step in self.dropped if step.after < step.before)
        return f"{self.stable}: {self.message}" + (f" ({steps})" if steps else "")

    @property
    def stable(self) -> str:
        """The code as it is compared and counted: `quota_exceeded:total.max.vram.request`."""
        return f"{self.code}:{self.resource}" if self.resource else str(self.code)

    @property
    def helped_by_scale_up(self) -> bool | None:
        return _SCALE_UP_HELPS.get(self.code, False)
