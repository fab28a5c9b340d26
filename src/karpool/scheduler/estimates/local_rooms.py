"""Answers from local copies of the rooms: promises are subtracted exactly, and no estimator is asked.

A copy is valid while its estimator was heard from recently (`max_age_seconds`); otherwise, and for clusters
without a copy, estimators are asked. The arrived part of each promise is known from the same instant as the
room (`CopiedCluster.workloads`); a promise that was not reported on yet is subtracted as a whole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from karpool.kube.clock import Clock
from karpool.model.karmada.binding import BindingKey
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.rooms.arrived import arrived, outstanding
from karpool.rooms.copied_rooms import CopiedCluster, CopiedRooms
from karpool.rooms.room_change import PodsOfWorkload, RoomChange, WorkloadKey
from karpool.scheduler.cycle.decision import ACCURATE, EstimatePart
from karpool.scheduler.estimates.estimate_cache import EstimatorQuestion, PromiseHandling
from karpool.scheduler.promises.ledger import Freed, PromiseLedger
from karpool.scheduler.promises.promise import Amounts, Promise, WorkloadRequirements
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload

MAX_AGE_SECONDS = 5.0  # an estimator sends a heartbeat every second

Follow = Callable[[str, Sequence[WorkloadKey], Sequence[WorkloadKey]], None]


class RoomState(StrEnum):
    """The state of a cluster's local copy."""

    CURRENT = "current"  # answered from its copy
    LATE = "late"  # there is a copy, but its estimator was not heard from for too long
    NONE = "none"  # asked: there is no copy


class _Heard(NamedTuple):
    at: float  # monotonic
    age_seconds: float  # age of the estimator's own data at that time


class LocalRooms:
    """`follow` is called with the workloads whose pods an estimator should report, and those it should not
    any longer.
    """

    def __init__(
        self,
        ledger: PromiseLedger | None,
        clock: Clock,
        *,
        max_age_seconds: float = MAX_AGE_SECONDS,
        on_freed: Callable[[Freed], None] = lambda _: None,
    ) -> None:
        self._ledger, self._clock, self._on_freed = ledger, clock, on_freed
        self._max_age_seconds = max_age_seconds
        self.copies = CopiedRooms()
        self.follow: Follow = lambda cluster, more, less: None
        self._heard: dict[str, _Heard] = {}
        self._reasons: dict[str, str] = {}  # why there is no copy
        self._followed: dict[str, set[WorkloadKey]] = {}
        self._settled: dict[str, tuple[object, int]] = {}  # promises and copy of the last settlement
        self._reported: dict[str, dict[BindingKey, ArrivedReplicas]] = {}
        self._outstanding: dict[str, dict[BindingKey, _Outstanding]] = {}
        self.answered = 0

    # Updates

    def apply(self, change: RoomChange) -> None:
        """Raises RoomChangeRefused."""
        self.copies.apply(change)
        self._settled.pop(change.cluster, None)
        before = self._heard.get(change.cluster)
        self._heard[change.cluster] = _Heard(
            self._clock.monotonic(), before.age_seconds if before is not None else 0.0
        )

    def beat(self, cluster: str, epoch: int, sequence: int, age_seconds: float) -> None:
        """Record a heartbeat: nothing changed."""
        copy = self.copies.get(cluster)
        if copy is not None and (copy.epoch, copy.sequence) == (epoch, sequence) and age_seconds >= 0:
            self._heard[cluster] = _Heard(self._clock.monotonic(), age_seconds)

    def cut(self, cluster: str, reason: str) -> None:
        """The stream was interrupted; the copy may be continued."""
        self._heard.pop(cluster, None)
        self._reasons[cluster] = reason

    def forget(self, cluster: str, reason: str = "") -> None:
        self.cut(cluster, reason)
        self.copies.drop(cluster)
        self._settled.pop(cluster, None)

    def left(self, cluster: str) -> None:
        """Remove a cluster that is gone."""
        self.forget(cluster)
        for held in (self._reasons, self._followed, self._reported, self._outstanding):
            held.pop(cluster, None)

    # State

    def age_seconds(self, cluster: str) -> float | None:
        """The maximum age of the copy's data; None without a valid copy."""
        heard = self._heard.get(cluster)
        return None if heard is None else self._clock.monotonic() - heard.at + heard.age_seconds

    def state(self, cluster: str) -> RoomState:
        if self.copies.get(cluster) is None or cluster not in self._heard:
            return RoomState.NONE
        return RoomState.CURRENT if self.is_current(cluster) else RoomState.LATE

    def is_current(self, cluster: str) -> bool:
        return self._is_heard(cluster, self._clock.monotonic()) and self.copies.get(cluster) is not None

    def _is_heard(self, cluster: str, now: float) -> bool:
        """Whether the copy is valid: its estimator was heard from recently."""
        heard = self._heard.get(cluster)
        return heard is not None and now - heard.at <= self._max_age_seconds

    def why_asked(self, cluster: str) -> str:
        """Why its estimator is asked although rooms are followed; empty if unknown."""
        if self.state(cluster) is RoomState.LATE:
            return f"its room stream was silent for {self.age_seconds(cluster):.0f} s"
        return self._reasons.get(cluster, "")

    def followed(self, cluster: str) -> Iterable[WorkloadKey]:
        return self._followed.get(cluster, ())

    def handling(self, cluster: str) -> PromiseHandling | None:
        """How promises are handled, if the copy is valid."""
        copy = self.copies.get(cluster) if self.is_current(cluster) else None
        if copy is None:
            return None
        return PromiseHandling.VERIFIES if copy.rules.knows_owners else PromiseHandling.DEDUCTS

    # Answers

    def parts(
        self, question: EstimatorQuestion, clusters: Sequence[MemberCluster]
    ) -> Mapping[str, EstimatePart]:
        """Answers for the clusters with valid copies."""
        now = self._clock.monotonic()
        names = [cluster.name for cluster in clusters if self._is_heard(cluster.name, now)]
        if not names:
            return {}
        freed: Freed = set()
        for name in names:
            freed |= self._settle(name)
        if freed:
            self._on_freed(freed)
        self.answered += len(names)
        heard, promised = self._heard, self._outstanding
        parts: dict[str, EstimatePart] = {}
        for name, answer in self.copies.answers(question.request, names).items():
            at, age_seconds = heard[name]
            note = f"counted here, in its room of {now - at + age_seconds:.1f} s ago"
            if workloads := promised.get(name):
                note += f", after promises to {len(workloads)} workloads"
            parts[name] = EstimatePart(ACCURATE, answer.value, note, room=answer.parts)
        return parts

    def verify(self) -> Freed:
        """Report arrivals to the ledger again: pods that are still pending renew their promise."""
        freed: Freed = set()
        names = {*self._followed, *self._ledger.clusters()} if self._ledger is not None else ()
        for name in sorted(names):
            if self.is_current(name):
                freed |= self._settle(name, reports=True)
        return freed

    # Internals

    def _settle(self, cluster: str, *, reports: bool = False) -> Freed:
        """Apply the promises of a cluster to its copy; return the clusters where that freed capacity.

        Arrivals are reported to the ledger if they are new or, with `reports`, always.
        """
        ledger, copy = self._ledger, self.copies.get(cluster)
        if ledger is None or copy is None:
            return _NOTHING_FREED
        if not reports and self._settled.get(cluster) == (ledger.changes(cluster), copy.changes):
            return _NOTHING_FREED
        verifies = copy.rules.knows_owners
        freed = self._report(copy, ledger, reports) if verifies else _NOTHING_FREED
        before = self._outstanding.get(cluster, {})
        after: dict[BindingKey, _Outstanding] = {}
        for promise in ledger.promises(cluster):
            amounts = promise.promised if verifies else promise.in_flight
            if any(amounts):
                pods = copy.pods_of(*promise.workload_key) if verifies else None
                entry = before.get(promise.binding)
                if entry is None or not entry.is_of(promise, amounts, pods):
                    entry = _outstanding(promise, amounts, pods)
                after[promise.binding] = entry
        self._outstanding[cluster] = after
        self.copies.assume(cluster, [entry.workload for entry in after.values()])
        self._settled[cluster] = ledger.changes(cluster), copy.changes
        if verifies:
            self._follow_workloads(copy, {entry.promise.workload_key for entry in after.values()})
        return freed

    def _report(self, copy: CopiedCluster, ledger: PromiseLedger, always: bool) -> Freed:
        """Report promises whose pods the estimator reported."""
        freed: Freed = set()
        before = self._reported.get(copy.name, {})
        after: dict[BindingKey, ArrivedReplicas] = {}
        at = self._clock.monotonic()
        for promise in list(ledger.promises(copy.name)) if copy.workloads else ():
            pods = copy.pods_of(*promise.workload_key)
            if pods is None:
                continue
            if not pods[0] and not pods[1] and promise.binding not in before:
                continue  # none arrived, before and now: nothing new
            on_nodes = arrived(copy.pods_of, promise.assumed(promise.promised))
            after[promise.binding] = on_nodes
            if on_nodes.bound and (always or before.get(promise.binding) != on_nodes):
                freed |= ledger.report(copy.name, promise.binding, on_nodes, at)
        self._reported[copy.name] = after
        return freed

    def _follow_workloads(self, copy: CopiedCluster, workloads: set[WorkloadKey]) -> None:
        followed = self._followed.get(copy.name, set())
        if workloads == followed:
            return
        for workload in followed - workloads:
            copy.workloads.pop(workload, None)
        self._followed[copy.name] = workloads
        self.follow(copy.name, sorted(workloads - followed), sorted(followed - workloads))


_NOTHING_FREED: Freed = set()


class _Outstanding(NamedTuple):
    """The remaining part of a promise, valid for the same promise and the same pods."""

    promise: Promise
    amounts: Amounts
    desired: Amounts
    requirements: WorkloadRequirements
    pods: PodsOfWorkload | None
    workload: AssumedWorkload

    def is_of(self, promise: Promise, amounts: Amounts, pods: PodsOfWorkload | None) -> bool:
        return (
            self.promise is promise
            and self.amounts == amounts
            and self.desired == promise.desired
            and self.requirements is promise.workload
            and self.pods == pods
        )


def _outstanding(promise: Promise, amounts: Amounts, pods: PodsOfWorkload | None) -> _Outstanding:
    whole = promise.assumed(amounts)
    workload = outstanding(whole, arrived(lambda *_: pods, whole))
    if workload == whole:
        workload = whole
    return _Outstanding(promise, amounts, promise.desired, promise.workload, pods, workload)
