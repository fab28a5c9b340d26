"""What a step looks at, and what it decides: plain values, so that a step can be repeated and compared.

`World` is the cluster at one moment, as seen: it may be stale, and a step on a stale
world must do no harm. `Plan` is what to write and to do, in order: records first, then
holds, smart pods, commits. Nothing here acts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpool.gpu.demand import Demand, Item, Rung
from karpool.gpu.devices import Device
from karpool.gpu.record import Record, Unit
from karpool.model.taints import Taint
from karpool.provisioning.placeholders import Placeholder
from karpool.provisioning.stages import Progress


@dataclass(frozen=True, slots=True)
class Settings:
    """Seconds, unless the name says otherwise (reference 5.9)."""

    debounce: float = 10.0
    resync: float = 30.0
    pending_limit: float = 300.0
    launch_limit: float = 960.0
    device_limit: float = 900.0
    hold: float = 120.0
    delete_retry: float = 5.0
    delete_retry_limit: float = 60.0
    maximum_age: float = 2400.0
    orphan_grace: float = 120.0
    rejected_wait: float = 300.0  # before a hopeless request is looked at afresh
    max_in_flight: int = 15  # nodes
    max_units: int = 1000  # of one attempt


SMART_POD_USE = "smart-pod/"  # and the uid: `used_by` of a device that one of ours occupies


@dataclass(frozen=True, slots=True)
class NodeView:
    """`going`: deleted, disrupted or interrupted; nothing new belongs there."""

    name: str
    ready: bool = False
    going: bool = False
    devices: tuple[Device, ...] = ()  # `available` is what holds and allocations leave
    cpu_milli: int = 0  # free
    memory_bytes: int = 0
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Held:
    """A reservation of the allocator for an item that waits."""

    uid: str
    node: str
    devices: tuple[str, ...]
    expires: float


@dataclass(frozen=True, slots=True)
class World:
    """`attempted` are commits that this process has tried: (pod uid, record uid, readiness epoch).

    `refused` are smart pods that the API server would not have: (record, epoch, index) -> why.
    `deletes` are when each smart pod (uid) was last asked to go, and how often.
    """

    now: float
    demand: Mapping[str, Demand] = field(default_factory=dict)
    records: Mapping[str, Record] = field(default_factory=dict)
    placeholders: tuple[Placeholder, ...] = ()
    claims: Mapping[str, Progress] = field(default_factory=dict)
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    holds: Mapping[str, Held] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()
    attempted: frozenset[tuple[str, str, int]] = frozenset()
    refused: Mapping[tuple[str, int, int], str] = field(default_factory=dict)
    deletes: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    resting: Mapping[str, float] = field(default_factory=dict)  # candidates out of stock, until when
    gangs_running: Mapping[str, int] = field(default_factory=dict)  # members allocated, by group


@dataclass(frozen=True, slots=True)
class Create:
    """Make the smart pod of this unit. The record that intends it is already stored."""

    record: str
    epoch: int
    unit: Unit
    rung: Rung


@dataclass(frozen=True, slots=True)
class Delete:
    placeholder: Placeholder
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    item: Item
    node: str
    devices: tuple[str, ...]
    expires: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Give a hold back."""

    uid: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Turn the hold into an allocation, once, and let the pod go there."""

    item: Item
    record: str
    readiness_epoch: int


class Tell(StrEnum):
    """What a waiting worker is told; reasons of its condition."""

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
    JOINED = "ServedByOtherScaleUp"


@dataclass(frozen=True, slots=True)
class Explanation:
    uid: str
    reason: Tell
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`store` are records to write (new where `uid` is empty); actions of a record that could not
    be stored are not done. `wake_at` is when to look again though nothing happens."""

    store: tuple[Record, ...] = ()
    remove: tuple[Record, ...] = ()
    creates: tuple[Create, ...] = ()
    deletes: tuple[Delete, ...] = ()
    holds: tuple[Hold, ...] = ()
    drops: tuple[Drop, ...] = ()
    commits: tuple[Commit, ...] = ()
    explanations: Mapping[str, Explanation] = field(default_factory=dict)
    wake_at: float | None = None
