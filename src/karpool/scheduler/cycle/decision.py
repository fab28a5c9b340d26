"""A scheduling decision as a value: what to write, why, and all numbers on the way.

Conditions, events, metrics, log lines and `explain` are rendered from it. Nothing here computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from karpool.model.infeasible import Infeasible, Reason
from karpool.model.karmada.binding import BindingKey, TargetCluster
from karpool.model.karmada.placement import ReplicaStrategy
from karpool.wire.requests import RoomParts


class ScheduleReason(Reason):
    """Reason of the condition `Scheduled`, and of a cluster that a filter leaves out, by its plugin."""

    SUCCESS = "Success"
    NO_CLUSTER_FIT = "NoClusterFit"
    UNSCHEDULABLE = "Unschedulable"
    SCHEDULER_ERROR = "SchedulerError"
    QUOTA_EXCEEDED = "QuotaExceeded"  # set after the API server's refusal, not by a decision

    API_ENABLEMENT = "APIEnablement"
    TAINT_TOLERATION = "TaintToleration"
    CLUSTER_AFFINITY = "ClusterAffinity"
    SPREAD_CONSTRAINT = "SpreadConstraint"
    CLUSTER_EVICTION = "ClusterEviction"
    WORKLOAD_AFFINITY = "WorkloadAffinity"
    WORKLOAD_ANTI_AFFINITY = "WorkloadAntiAffinity"
    PLUGIN = "Plugin"  # a plugin of another package, named in the text


SUCCESS_MESSAGE = "Binding has been scheduled successfully."


class SchedulingMode(StrEnum):
    STEADY = "Steady"  # keep placed replicas
    FRESH = "Fresh"  # as if nothing were placed; after a manual request


NotScheduled = Infeasible[ScheduleReason]  # `resolvable`: more capacity would help


# The sources of availability, and the number that stands for "no limit".
GENERAL = "general-estimator"
ACCURATE = "scheduler-estimator"
UNKNOWN = "unknown"
MANY = 2**31 - 1


class EstimatePart(NamedTuple):
    """One source's answer for a cluster. None: unknown, and `note` says why."""

    source: str
    value: int | None
    note: str = ""
    is_kept: bool = False  # derived from a recent answer instead of a new one
    room: RoomParts | None = None  # None: existing nodes only, as far as the source says


class ClusterAvailability(NamedTuple):
    """How many *more* replicas (or sets of components) a cluster takes, and by which sources."""

    replicas: int
    source: str
    parts: tuple[EstimatePart, ...] = ()
    room: RoomParts | None = None  # of the source that decided


class ClusterCandidate(NamedTuple):
    """A cluster that passed the filters."""

    name: str
    tier: int
    score: int
    available: int  # additional replicas that fit
    assigned: int  # existing replicas of this binding
    region: str = ""
    price: float | None = None
    availability: ClusterAvailability | None = None  # None: the result does not depend on it

    @property
    def total(self) -> int:
        return self.available + self.assigned

    @property
    def after_scale_up(self) -> int:
        """How many of the available replicas need new nodes."""
        room = self.availability.room if self.availability is not None else None
        return 0 if room is None else max(0, self.available - room.existing)


@dataclass(frozen=True, slots=True)
class ClusterSelection:
    """The clusters that spread constraints select, and how."""

    chosen: tuple[ClusterCandidate, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaDivision:
    """The division of replicas in one tier."""

    strategy: ReplicaStrategy
    action: str  # "duplicate", "divide", "first schedule", "scale up", "scale down", "fresh", "keep"
    target: int  # replicas divided in this step
    weights: tuple[tuple[str, float], ...] = ()  # in the order in which they were considered
    left_out: tuple[str, ...] = ()  # aggregated: not needed
    kept: tuple[tuple[str, int], ...] = ()
    result: tuple[tuple[str, int], ...] = ()
    tier: int = 0
    missing: int = 0  # partial placement: replicas without a place
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AffinityAttempt:
    """One affinity group: it has targets, or a failure, or both after a partial placement."""

    group: str
    index: int
    clusters: int  # total number
    refused: tuple[NotScheduled, ...]  # one per cluster
    candidates: tuple[ClusterCandidate, ...] = ()
    selection: ClusterSelection | None = None
    divisions: tuple[ReplicaDivision, ...] = ()
    targets: tuple[TargetCluster, ...] | None = None
    failure: NotScheduled | None = None


@dataclass(frozen=True, slots=True)
class SchedulingDecision:
    """`targets` None: keep the current result. Empty: clear it. A result with a failure is a partial
    placement: write it, and retry the rest when there is capacity.
    """

    binding: BindingKey
    mode: SchedulingMode
    reason: ScheduleReason
    message: str
    targets: tuple[TargetCluster, ...] | None
    group: str = ""  # affinity group of the result; empty without named groups
    missing: int = 0
    attempts: tuple[AffinityAttempt, ...] = ()

    @property
    def is_success(self) -> bool:
        return self.reason is ScheduleReason.SUCCESS

    @property
    def is_partial(self) -> bool:
        return self.missing > 0 and self.targets is not None

    @property
    def shown_targets(self) -> str:
        return show_targets(self.targets or ())

    def failed_groups(self) -> list[str]:
        """Messages of the failed groups of a placement with several groups."""
        subject = f"{self.binding.kind}({self.binding})"
        return [
            f"failed to schedule {subject} with clusterAffiliates index({attempt.index}): "
            f"{attempt.failure.detail}"
            for attempt in self.attempts
            if attempt.group and attempt.failure is not None and attempt.targets is None
        ]


def show_targets(targets: Sequence[TargetCluster]) -> str:
    """The result as in Karmada's events: `{member1:1, member2:2}`."""
    return "{" + ", ".join(f"{target.name}:{target.replicas}" for target in targets) + "}"
