"""The durable record of one scale-up: the intention, its progress, and what was learnt.

There is one record per demand key, named after it. It contains everything that a restarted controller could
not see in the cluster; the rest is derived again. A `ScaleUpUnit` is one requested node with its smart pod;
its stage only moves forward, except from a hand-off back to Ready. The state of a record is that of its least
advanced unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.records.demand_key import DemandKey
from karpool.provisioning.candidates.attempts import Memory


class ScaleUpState(StrEnum):
    BUFFERED = "Buffered"
    CREATING = "Creating"
    PENDING = "Pending"
    LAUNCHING = "Launching"
    REGISTERED = "Registered"
    DEVICE_WAIT = "DeviceWait"
    READY = "Ready"
    HANDING_OFF = "HandingOff"
    RETRYING = "Retrying"
    COMPLETED = "Completed"
    BACKOFF = "Backoff"
    EXHAUSTED = "Exhausted"
    CANCELLED = "Cancelled"
    REJECTED = "Rejected"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def place(self) -> int:
        """The position of a unit's stage in the order of stages."""
        return _PLACE[self]


STAGES = (
    ScaleUpState.CREATING,
    ScaleUpState.PENDING,
    ScaleUpState.LAUNCHING,
    ScaleUpState.REGISTERED,
    ScaleUpState.DEVICE_WAIT,
    ScaleUpState.READY,
    ScaleUpState.HANDING_OFF,
    ScaleUpState.RETRYING,
    ScaleUpState.COMPLETED,
)
TERMINAL = frozenset((ScaleUpState.COMPLETED, ScaleUpState.CANCELLED, ScaleUpState.REJECTED))
ATTEMPTING = frozenset(STAGES[:-1])
_PLACE = {stage: number for number, stage in enumerate(STAGES)}
# For people.
MEANS = {
    ScaleUpState.BUFFERED: "the demand is known; capacity may be freed for it",
    ScaleUpState.CREATING: "the request is recorded; smart pods are being created",
    ScaleUpState.PENDING: "smart pods wait; the autoscaler has not reacted yet",
    ScaleUpState.LAUNCHING: "a machine is being started",
    ScaleUpState.REGISTERED: "a node exists and is not Ready yet",
    ScaleUpState.DEVICE_WAIT: "the node is Ready; some of its devices are missing",
    ScaleUpState.READY: "the devices are available; workers are being selected",
    ScaleUpState.HANDING_OFF: "devices are reserved; the smart pod is being removed",
    ScaleUpState.RETRYING: "the waiting workers get their devices",
    ScaleUpState.COMPLETED: "every worker has its devices or was deleted",
    ScaleUpState.BACKOFF: "an attempt failed; the next one follows",
    ScaleUpState.EXHAUSTED: "every candidate failed in this round; the next round starts with the first",
    ScaleUpState.CANCELLED: "no worker waits",
    ScaleUpState.REJECTED: "no node that can be launched would help",
}


@dataclass(frozen=True, slots=True)
class ScaleUpUnit:
    """One requested node: the number and capacity of its devices, and CPU and memory for their users.

    `since` is the start of the stage, `started` the start of the unit.

    `held` are the pending items chosen for its devices, `ended` why it ended without serving.
    """

    index: int
    gpus: int
    cpu_milli: int
    memory_bytes: int
    candidate: str  # Rung.key
    stage: ScaleUpState
    since: float
    started: float
    claim: str = ""
    node: str = ""
    held: tuple[str, ...] = ()
    ended: LaunchReason | None = None
    devices: int = 0  # that a node of the candidate should have
    tflops_milli: int = 0  # of each
    vram_bytes: int = 0
    about: str = ""  # the candidate in words

    @property
    def is_active(self) -> bool:
        return not self.ended and self.stage is not ScaleUpState.COMPLETED


@dataclass(frozen=True, slots=True)
class ScaleUpRecord:
    """`uid` and `version` are the object's; empty before it is stored."""

    key: DemandKey
    state: ScaleUpState
    first_seen: float
    state_since: float
    uid: str = ""
    version: str = ""
    epoch: int = 0
    reason: str = ""
    message: str = ""
    round: int = 0
    attempts: int = 0  # failed since the last success
    attempt_started: float = 0.0
    next_attempt: float = 0.0
    units: tuple[ScaleUpUnit, ...] = ()
    memory: Memory = field(default_factory=dict, hash=False)  # of failed candidates
    bad_nodes: tuple[str, ...] = ()  # whose devices never appeared
    readiness_epoch: int = 0
    retried: Mapping[str, int] = field(default_factory=dict, hash=False)  # uid -> readiness epoch
    waiting: int = 0  # number of items in the last step
    demand: tuple[str, ...] = ()  # the first few items, for people

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def active_units(self) -> tuple[ScaleUpUnit, ...]:
        return tuple(unit for unit in self.units if unit.is_active)

    @property
    def units_in_flight(self) -> tuple[ScaleUpUnit, ...]:
        """Units whose node was requested and whose devices are not ready. A node that has only registered is
        included: otherwise it would count neither as coming nor as capacity, and be launched twice.
        """
        return tuple(unit for unit in self.active_units if unit.stage.place < ScaleUpState.READY.place)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({unit.node for unit in self.units if unit.node}))

    @property
    def next_index(self) -> int:
        return max((unit.index + 1 for unit in self.units), default=0)
