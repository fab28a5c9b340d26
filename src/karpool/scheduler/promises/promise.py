"""One promise: capacity in one cluster that a decision reserves until its pods are there.

A promise holds increments, each with its own age, never the whole workload. Every report recomputes what is
still in flight: desired less existing replicas, and never more than was promised. A workload that shrank a
moment ago has more pods than desired; until it was seen small, counts prove nothing.

There are three readers with three amounts: a Karpool estimator is told everything and subtracts what it sees
on nodes itself (`promised`); a Go estimator is told what is not known to be ready (`in_flight`); the
cluster's summary, which lags, is charged with what it cannot have counted yet (`uncounted`). Time is
monotonic and passed in.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import sub
from typing import NamedTuple

from karpool.model.karmada.binding import BindingKey, WorkloadTemplate
from karpool.model.karmada.replica_requirements import Component, ReplicaRequirements
from karpool.scheduler.promises.landed_replicas import HEALTHY, NOTHING, UNHEALTHY, LandedReplicas
from karpool.wire.client_protocol import encode_assumed
from karpool.wire.requests import ArrivedReplicas, AssumedOwner, AssumedWorkload

Amounts = tuple[int, ...]  # one for each component
# The first summary after a pod appeared may be older than the pod; the second is not.
SUMMARIES_UNTIL_COUNTED = 2


@dataclass(frozen=True, slots=True)
class PromiseLifetime:
    """How long a promise may live.

    It lives for `seconds`; while its pods are seen pending it is renewed, up to `limit_seconds`. A summary is
    assumed to have counted what was reported `settle_seconds` ago.
    """

    seconds: float = 300.0
    limit_seconds: float = 1800.0
    settle_seconds: float = 30.0


class WorkloadRequirements(NamedTuple):
    """The requests of a workload, one entry for each component."""

    names: tuple[str, ...]
    requirements: tuple[ReplicaRequirements | None, ...]


class PromiseIncrement(NamedTuple):
    amounts: Amounts
    made_at: float


class _Seen(NamedTuple):
    created: int
    at: float
    summaries: int  # number of summaries of the cluster at that time


@dataclass(slots=True, eq=False)
class Promise:
    binding: BindingKey
    cluster: str
    template: WorkloadTemplate
    workload: WorkloadRequirements
    desired: Amounts
    increments: list[PromiseIncrement] = field(default_factory=list)  # oldest first
    shrank: bool = False
    fewest: int | None = None  # smallest desired number since it shrank; None if unknown
    due_at: float = math.inf  # time of the next check
    _ready: int | None = None
    _bound: Amounts | None = None
    _waiting_at: float | None = None
    _was_unhealthy: bool = False
    _is_healthy: bool = False
    _landing: LandedReplicas = NOTHING
    # Tuples, because there are many promises and most stay empty: an empty deque alone takes 600 bytes.
    _created: tuple[_Seen, ...] = ()
    _encoded: tuple[Amounts, bytes] | None = None

    # Amounts

    @property
    def made_at(self) -> float:
        return self.increments[0].made_at if self.increments else 0.0

    @property
    def promised(self) -> Amounts:
        """Everything that was promised and has not expired, whether it has landed or not."""
        if len(self.increments) == 1:
            return self.increments[0].amounts
        if not self.increments:
            return _none(self.desired)
        return tuple(map(sum, zip(*(increment.amounts for increment in self.increments), strict=True)))

    @property
    def in_flight(self) -> Amounts:
        """The part that is not known to have landed."""
        promised = self.promised
        if self.shrank or (self._landing is NOTHING and self._bound is None):
            return promised
        if self._was_unhealthy and self._is_healthy:
            return _none(promised)
        if self._bound is not None:
            by_pods = _missing(promised, self.desired, self._bound)
            return min(by_pods, self._by_ready(promised), key=sum)
        return self._by_ready(promised)

    @property
    def replicas(self) -> int:
        return sum(self.in_flight)

    def uncounted(self, now: float, summaries: int, settle_seconds: float) -> Amounts:
        """The part that the cluster's summary may not have counted yet."""
        promised = self.promised
        if self.shrank or not self._created:
            return promised
        counted = self._counted(now, summaries, settle_seconds)
        if len(promised) == 1:
            return _missing(promised, self.desired, (counted,))
        return _none(promised) if counted >= sum(self.desired) else promised

    def is_over(self, now: float, summaries: int, settle_seconds: float) -> bool:
        """Whether nothing is in flight, and every reader has counted it."""
        return not self.replicas and not sum(self.uncounted(now, summaries, settle_seconds))

    def copy(self) -> "Promise":
        """An independent copy."""
        return replace(
            self,
            due_at=math.inf,
            increments=list(self.increments),
        )

    # Changes

    def want(self, template: WorkloadTemplate, workload: WorkloadRequirements) -> None:
        """Set the requests of the pods to come."""
        self.template, self.workload = template, workload
        self._encoded = None

    def aim(self, desired: Amounts, now: float) -> None:
        """Set the desired replicas: more is promised, less is released."""
        more = tuple(map(sub, desired, self.desired))
        self.desired = desired
        grown = tuple(max(0, change) for change in more)
        less = [max(0, -change) for change in more]
        if any(less):
            if not self.shrank:
                self.fewest = sum(desired)
            elif self.fewest is not None:
                self.fewest = min(self.fewest, sum(desired))
            self.shrank = True
            self._take_back(less)
        if any(grown):
            self.increments.append(PromiseIncrement(grown, now))
            self._was_unhealthy = self._is_healthy = False  # what was healthy was smaller

    def landed(self, landing: LandedReplicas, now: float, summaries: int) -> bool:
        """Apply the member's report; return whether it is new."""
        if landing == self._landing:
            return False
        self._landing = landing
        self._ready = landing.ready
        self._was_unhealthy |= landing.health == UNHEALTHY
        self._is_healthy = landing.health == HEALTHY and landing.ready is None
        if landing.ready is not None:
            self._end_shrinking_if_small(landing.ready, landing.created)
        created = landing.created
        if created is None and self._is_healthy and self._was_unhealthy:
            created = sum(self.desired)
        self._saw_created(created, now, summaries)
        return True

    def arrived(self, arrived: ArrivedReplicas, now: float, summaries: int) -> bool:
        """Apply what an estimator sees of its pods; return whether it is plausible."""
        if len(arrived.bound) != len(self.desired):
            return False
        self._bound = tuple(max(0, bound) for bound in arrived.bound)
        self._end_shrinking_if_small(sum(self._bound), sum(self._bound) + max(0, arrived.waiting))
        if arrived.waiting > 0:
            self._waiting_at = now
        if self._ready is None:
            self._saw_created(sum(self._bound) + max(0, arrived.waiting), now, summaries)
        return True

    def expire(self, now: float, lifetime: PromiseLifetime) -> int:
        """Expire increments that are too old; return how many replicas in flight that freed."""
        before = self.replicas
        self.increments = [
            increment for increment in self.increments if self._ends_at(increment, lifetime) > now
        ]
        return before - (self.replicas if self.increments else 0)

    def ends_at(self, lifetime: PromiseLifetime) -> float:
        """When the next increment expires, as things are."""
        if len(self.increments) == 1:
            return self._ends_at(self.increments[0], lifetime)
        return min((self._ends_at(increment, lifetime) for increment in self.increments), default=0.0)

    @property
    def is_settling(self) -> bool:
        """Whether pods were reported that a summary may not have counted."""
        return bool(self._created)

    def settles_at(self, now: float, settle_seconds: float) -> float:
        """When the next report counts for the summary by its age alone; infinite if there is none."""
        if not self._created:
            return math.inf
        return min(
            (report.at + settle_seconds for report in self._created if report.at + settle_seconds > now),
            default=math.inf,
        )

    # Encoding

    @property
    def workload_key(self) -> tuple[str, str, str, str]:
        template = self.template
        return template.namespace, template.api_version, template.kind, template.name

    def assumed(self, amounts: Amounts) -> AssumedWorkload:
        components = tuple(
            Component(name, replicas, requirements)
            for name, replicas, requirements in zip(
                self.workload.names, amounts, self.workload.requirements, strict=True
            )
        )
        template = self.template
        workload = AssumedOwner(template.api_version, template.kind, template.name, self.desired)
        return AssumedWorkload(template.namespace, components, workload)

    def encoded(self, amounts: Amounts) -> bytes:
        """The wire encoding; cached while it stays the same."""
        key = (*amounts, *self.desired)
        if self._encoded is None or self._encoded[0] != key:
            self._encoded = (key, encode_assumed(self.assumed(amounts)))
        return self._encoded[1]

    # Internals

    @property
    def _base(self) -> int:
        """Desired replicas without the promised ones."""
        return sum(self.desired) - sum(self.promised)

    def _end_shrinking_if_small(self, landed: int, pods: int | None) -> None:
        """End shrinking if no pod is left that is to be removed: no more landed than without the promise, or
        there are no more pods than the smallest desired number.
        """
        few = self.fewest is not None and pods is not None and pods <= self.fewest
        if few or landed <= self._base:
            self.shrank, self.fewest = False, None

    def _by_ready(self, promised: Amounts) -> Amounts:
        if self._ready is None:
            return promised
        if len(promised) == 1:
            return _missing(promised, self.desired, (self._ready,))
        return _none(promised) if self._ready >= sum(self.desired) else promised

    def _take_back(self, less: Sequence[int]) -> None:
        """Release the newest first: a workload that shrinks first removes pods that do not run."""
        increments: list[PromiseIncrement] = []
        missing = list(less)
        for increment in reversed(self.increments):
            taken = [min(have, want) for have, want in zip(increment.amounts, missing, strict=True)]
            missing = [want - got for want, got in zip(missing, taken, strict=True)]
            rest = tuple(have - got for have, got in zip(increment.amounts, taken, strict=True))
            if any(rest):
                increments.append(PromiseIncrement(rest, increment.made_at))
        self.increments = increments[::-1]

    def _ends_at(self, increment: PromiseIncrement, lifetime: PromiseLifetime) -> float:
        end = increment.made_at + lifetime.seconds
        if self._waiting_at is not None:
            limit = increment.made_at + max(lifetime.limit_seconds, lifetime.seconds)
            end = max(end, min(self._waiting_at + lifetime.seconds, limit))
        return end

    def _saw_created(self, created: int | None, now: float, summaries: int) -> None:
        if created is None or (self._created and self._created[-1].created == created):
            return
        self._created = (*self._created, _Seen(created, now, summaries))

    def _counted(self, now: float, summaries: int, settle_seconds: float) -> int:
        """Pods that the summary has counted: the minimum of the last settled report and later ones."""
        settled = [
            index
            for index, report in enumerate(self._created)
            if summaries - report.summaries >= SUMMARIES_UNTIL_COUNTED or now - report.at >= settle_seconds
        ]
        if not settled:
            return 0
        self._created = self._created[settled[-1] :]
        return min(report.created for report in self._created)


def _missing(promised: Amounts, desired: Amounts, there: Amounts) -> Amounts:
    return tuple(
        min(most, max(0, shall - have)) for most, shall, have in zip(promised, desired, there, strict=True)
    )


def _none(promised: Amounts) -> Amounts:
    return (0,) * len(promised)
