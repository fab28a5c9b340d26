"""Input and result of a step: plain values, so that a step can be repeated and compared.

`ScaleUpInput` is the cluster as observed at one moment: it may be stale, and a step on stale input must do no
harm. `ScaleUpPlan` is what to write and do, in order: records first, then holds, smart pods, commits. Nothing
here acts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpUnit
from karpool.gpu.scale_up.demand import GpuDemand, ScaleUpCandidate, WaitingWorker
from karpool.model.devices.device import Device
from karpool.model.devices.systems import GpuSystem
from karpool.model.taints import Taint
from karpool.provisioning.claims.claim_progress import ClaimProgress
from karpool.provisioning.placeholders.placeholder import Placeholder


@dataclass(frozen=True, slots=True)
class GpuNodeView:
    """`going`: deleted, disrupted or interrupted; nothing new is placed there."""

    name: str
    ready: bool = False
    going: bool = False
    devices: tuple[Device, ...] = ()  # `available` is net of holds and allocations
    cpu_milli: int = 0  # free
    memory_bytes: int = 0
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    shown: Mapping[str, int] = field(default_factory=dict, hash=False)  # number of devices by system

    def handed_out(self, key: DemandKey) -> int:
        """The number of devices that the system of this demand has on the node."""
        return self.shown.get(key.template if key.system == GpuSystem.MIG else key.system, 0)


@dataclass(frozen=True, slots=True)
class DeviceHold:
    """A reservation of the allocator for a pending item."""

    uid: str
    node: str
    devices: tuple[str, ...]
    expires: float


@dataclass(frozen=True, slots=True)
class ScaleUpInput:
    """`attempted` are commits that this process has tried: (pod uid, record uid, readiness epoch).

    `refused` are smart pods that the API server refused: (record, epoch, index) -> why. `deletes` are the
    last deletion attempt of each smart pod (uid), and their number.
    """

    now: float
    demand: Mapping[str, GpuDemand] = field(default_factory=dict)
    records: Mapping[str, ScaleUpRecord] = field(default_factory=dict)
    placeholders: tuple[Placeholder, ...] = ()
    claims: Mapping[str, ClaimProgress] = field(default_factory=dict)
    nodes: Mapping[str, GpuNodeView] = field(default_factory=dict)
    holds: Mapping[str, DeviceHold] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()
    attempted: frozenset[tuple[str, str, int]] = frozenset()
    refused: Mapping[tuple[str, int, int], str] = field(default_factory=dict)
    deletes: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    resting: Mapping[str, float] = field(default_factory=dict)  # candidates that are out of stock, until when
    gangs_running: Mapping[str, int] = field(default_factory=dict)  # number of allocated members, by group


@dataclass(frozen=True, slots=True)
class CreatePlaceholder:
    """Create the smart pod of this unit. Its record is already stored."""

    record: str
    epoch: int
    unit: ScaleUpUnit
    rung: ScaleUpCandidate


@dataclass(frozen=True, slots=True)
class DeletePlaceholder:
    placeholder: Placeholder
    reason: str


@dataclass(frozen=True, slots=True)
class HoldDevices:
    item: WaitingWorker
    node: str
    devices: tuple[str, ...]
    expires: float


@dataclass(frozen=True, slots=True)
class ReleaseHold:
    """Release a hold."""

    uid: str


@dataclass(frozen=True, slots=True)
class CommitHold:
    """Turn the hold into an allocation, once, and bind the pod."""

    item: WaitingWorker
    record: str
    readiness_epoch: int


class WaitReason(StrEnum):
    """The reason in a pending worker's condition."""

    SCHEDULED = "Scheduled"
    WAITING = "WaitingForCapacity"
    REQUESTED = "NodeRequested"
    COMING = "NodeComing"
    DEVICES = "WaitingForDevices"
    HANDING_OFF = "HandingOff"
    BACKOFF = "ScaleUpBackoff"
    EXHAUSTED = "CandidatesExhausted"
    REJECTED = "ScaleUpRejected"
    NEVER_FITS = "NeverFits"
    QUOTA = "QuotaExceeded"
    BAD_REQUEST = "BadRequest"
    NOT_ENFORCED = "ShareNotEnforced"
    JOINED = "ServedByOtherScaleUp"


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    uid: str
    reason: WaitReason
    message: str


@dataclass(frozen=True, slots=True)
class ScaleUpPlan:
    """`store` are records to write (new if `uid` is empty); actions of a record that could not be stored are
    skipped. `wake_at` is the time of the next step if nothing changes.
    """

    store: tuple[ScaleUpRecord, ...] = ()
    remove: tuple[ScaleUpRecord, ...] = ()
    creates: tuple[CreatePlaceholder, ...] = ()
    deletes: tuple[DeletePlaceholder, ...] = ()
    holds: tuple[HoldDevices, ...] = ()
    drops: tuple[ReleaseHold, ...] = ()
    commits: tuple[CommitHold, ...] = ()
    explanations: Mapping[str, WaitExplanation] = field(default_factory=dict)
    wake_at: float | None = None
