"""The durable record of one scale-up: what was intended, how far it got, what was learnt.

There is one per demand key, named after it. Everything that a restarted controller could
not see in the cluster is here; everything else is derived again. A `Unit` is one node
that was asked for, through one smart pod; its stage only moves forward, except from a
hand-off back to Ready. The state of a record is that of its unit furthest behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpool.gpu.demand import DemandKey
from karpool.provisioning.attempts import Memory, Setback


class State(StrEnum):
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
        """How far along the way; only for the stages of a unit."""
        return _PLACE[self]


STAGES = (
    State.CREATING,
    State.PENDING,
    State.LAUNCHING,
    State.REGISTERED,
    State.DEVICE_WAIT,
    State.READY,
    State.HANDING_OFF,
    State.RETRYING,
    State.COMPLETED,
)
TERMINAL = frozenset((State.COMPLETED, State.CANCELLED, State.REJECTED))
ATTEMPTING = frozenset(STAGES[:-1])
_PLACE = {stage: number for number, stage in enumerate(STAGES)}
# For people.
MEANS = {
    State.BUFFERED: "the demand is seen; room that is being freed gets a moment to show",
    State.CREATING: "what to ask for is written down; smart pods are being created",
    State.PENDING: "smart pods wait; the autoscaler has not reacted yet",
    State.LAUNCHING: "a machine is being started",
    State.REGISTERED: "a node exists and is not Ready yet",
    State.DEVICE_WAIT: "the node is Ready; its devices are not all there yet",
    State.READY: "the devices are there; workers are being chosen for them",
    State.HANDING_OFF: "devices are reserved; the smart pod is being removed",
    State.RETRYING: "the waiting workers are being given their devices",
    State.COMPLETED: "every worker it was for has its devices or is gone",
    State.BACKOFF: "an attempt came to nothing; the next one follows",
    State.EXHAUSTED: "every candidate failed in this round; it starts over with the first",
    State.CANCELLED: "nobody waits any more",
    State.REJECTED: "no node that could be bought would help",
}


SURPLUS = "Surplus"  # a unit that ended because nobody needs it any more


@dataclass(frozen=True, slots=True)
class Unit:
    """One node asked for: so many devices of this capacity, and CPU and memory for their users.

    `since` is when the stage began, `started` when the unit did.

    `held` are the waiting items chosen for its devices, `ended` why it ended without serving.
    """

    index: int
    gpus: int
    cpu_milli: int
    memory_bytes: int
    candidate: str  # Rung.key
    stage: State
    since: float
    started: float
    claim: str = ""
    node: str = ""
    held: tuple[str, ...] = ()
    ended: Setback | str = ""  # a Setback, or SURPLUS
    devices: int = 0  # that a node of the candidate should show
    tflops_milli: int = 0  # of each
    vram_bytes: int = 0
    about: str = ""  # the candidate in words

    @property
    def is_active(self) -> bool:
        return not self.ended and self.stage is not State.COMPLETED


@dataclass(frozen=True, slots=True)
class Record:
    """`uid` and `version` are the object's; empty while it has not been stored."""

    key: DemandKey
    state: State
    first_seen: float
    state_since: float
    uid: str = ""
    version: str = ""
    epoch: int = 0
    reason: str = ""
    message: str = ""
    round: int = 0
    attempts: int = 0  # that failed since the last success
    attempt_started: float = 0.0
    next_attempt: float = 0.0
    units: tuple[Unit, ...] = ()
    memory: Memory = field(default_factory=dict, hash=False)  # of candidates that failed
    bad_nodes: tuple[str, ...] = ()  # that never showed their devices
    readiness_epoch: int = 0
    retried: Mapping[str, int] = field(default_factory=dict, hash=False)  # uid -> readiness epoch
    waiting: int = 0  # items, when last looked at
    demand: tuple[str, ...] = ()  # the first few of them, for people

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def active_units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.is_active)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({unit.node for unit in self.units if unit.node}))

    @property
    def next_index(self) -> int:
        return max((unit.index + 1 for unit in self.units), default=0)
