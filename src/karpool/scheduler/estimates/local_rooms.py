"""Answers from copies of the rooms: what is promised is taken off here, exactly, and nobody is asked.

A copy counts as long as its estimator was heard of a moment ago (`max_age_seconds`); otherwise, and for
clusters without a copy, estimators are asked. What of each promise has arrived is known from the same
instant as the room (`CopiedCluster.workloads`); a promise that was not told of yet is taken off whole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from karpool.kube.clock import Clock
from karpool.model.karmada.binding import BindingKey
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.rooms.arrived import arrived, outstanding
from karpool.rooms.copied_rooms import CopiedCluster, CopiedRooms
from karpool.rooms.room_change import RoomChange, WorkloadKey
from karpool.scheduler.cycle.decision import ACCURATE, EstimatePart
from karpool.scheduler.estimates.estimate_cache import EstimatorQuestion, PromiseHandling
from karpool.scheduler.promises.ledger import Freed, PromiseLedger
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload

MAX_AGE_SECONDS = 5.0  # an estimator says every second that nothing has changed

Follow = Callable[[str, Sequence[WorkloadKey], Sequence[WorkloadKey]], None]


class RoomState(StrEnum):
    """How a cluster's room stands here."""

    CURRENT = "current"  # answered from its copy
    LATE = "late"  # the copy is there, and its estimator was not heard of for too long
    NONE = "none"  # asked: there is no copy


class _Heard(NamedTuple):
    at: float  # monotonic
    age_seconds: float  # of what the estimator itself knew then


class LocalRooms:
    """`follow` is told whose pods an estimator is to tell of, and whose no more."""

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
        self._settled: dict[str, tuple[object, int]] = {}  # promises and copy that were last put together
        self._reported: dict[str, dict[BindingKey, ArrivedReplicas]] = {}
        self._promised_replicas: dict[str, int] = {}
        self.answered = 0

    # What is heard

    def apply(self, change: RoomChange) -> None:
        """Raises RoomChangeRefused."""
        self.copies.apply(change)
        self._settled.pop(change.cluster, None)
        before = self._heard.get(change.cluster)
        self._heard[change.cluster] = _Heard(
            self._clock.monotonic(), before.age_seconds if before is not None else 0.0
        )

    def beat(self, cluster: str, epoch: int, sequence: int, age_seconds: float) -> None:
        """All is as it was."""
        copy = self.copies.get(cluster)
        if copy is not None and (copy.epoch, copy.sequence) == (epoch, sequence) and age_seconds >= 0:
            self._heard[cluster] = _Heard(self._clock.monotonic(), age_seconds)

    def cut(self, cluster: str, reason: str) -> None:
        """Nothing more is heard for now; the copy may be taken up again."""
        self._heard.pop(cluster, None)
        self._reasons[cluster] = reason

    def forget(self, cluster: str, reason: str = "") -> None:
        self.cut(cluster, reason)
        self.copies.drop(cluster)
        self._settled.pop(cluster, None)

    def left(self, cluster: str) -> None:
        """The cluster is gone."""
        self.forget(cluster)
        for held in (self._reasons, self._followed, self._reported, self._promised_replicas):
            held.pop(cluster, None)

    # What is known

    def age_seconds(self, cluster: str) -> float | None:
        """How old the picture is at most; None without one that counts."""
        heard = self._heard.get(cluster)
        return None if heard is None else self._clock.monotonic() - heard.at + heard.age_seconds

    def state(self, cluster: str) -> RoomState:
        if self.copies.get(cluster) is None or cluster not in self._heard:
            return RoomState.NONE
        return RoomState.CURRENT if self.is_current(cluster) else RoomState.LATE

    def is_current(self, cluster: str) -> bool:
        heard = self._heard.get(cluster)
        return (
            heard is not None
            and self._clock.monotonic() - heard.at <= self._max_age_seconds
            and self.copies.get(cluster) is not None
        )

    def why_asked(self, cluster: str) -> str:
        """Why its estimator is asked although rooms are followed; empty when nobody knows."""
        if self.state(cluster) is RoomState.LATE:
            return f"its room was not heard of for {self.age_seconds(cluster):.0f} s"
        return self._reasons.get(cluster, "")

    def followed(self, cluster: str) -> Iterable[WorkloadKey]:
        return self._followed.get(cluster, ())

    def handling(self, cluster: str) -> PromiseHandling | None:
        """What is done with promises, where the copy counts."""
        copy = self.copies.get(cluster) if self.is_current(cluster) else None
        if copy is None:
            return None
        return PromiseHandling.VERIFIES if copy.rules.knows_owners else PromiseHandling.DEDUCTS

    # Answering

    def parts(
        self, question: EstimatorQuestion, clusters: Sequence[MemberCluster]
    ) -> Mapping[str, EstimatePart]:
        """For those clusters whose copies count."""
        names = [cluster.name for cluster in clusters if self.is_current(cluster.name)]
        if not names:
            return {}
        for name in names:
            self._settle(name)
        self.answered += len(names)
        now, heard, promised = self._clock.monotonic(), self._heard, self._promised_replicas
        parts: dict[str, EstimatePart] = {}
        for name, answer in self.copies.answers(question.request, names).items():
            at, age_seconds = heard[name]
            note = f"counted here, in its room of {now - at + age_seconds:.1f} s ago"
            if count := promised.get(name):
                note += f", after {count} promised"
            parts[name] = EstimatePart(ACCURATE, answer.value, note, room=answer.parts)
        return parts

    def verify(self) -> Freed:
        """Tell the ledger again what has arrived: pods that are seen to wait renew their promise."""
        freed: Freed = set()
        names = {*self._followed, *self._ledger.clusters()} if self._ledger is not None else ()
        for name in sorted(names):
            copy = self.copies.get(name)
            if copy is not None and self.is_current(name):
                self._reported.pop(name, None)
                freed |= self._report(copy)
                self._settle(name)
        return freed

    # Inside

    def _settle(self, cluster: str) -> None:
        """Put what is promised there onto the copy."""
        ledger, copy = self._ledger, self.copies.get(cluster)
        if ledger is None or copy is None:
            return
        if self._settled.get(cluster) == (ledger.changes(cluster), copy.changes):
            return
        freed = self._report(copy)
        if freed:
            self._on_freed(freed)
        verifies = copy.rules.knows_owners
        assumed: list[AssumedWorkload] = []
        replicas = 0
        for promise in ledger.promises(cluster):
            amounts = promise.promised if verifies else promise.in_flight
            if any(amounts):
                workload = promise.assumed(amounts)
                assumed.append(outstanding(workload, arrived(copy.pods_of, workload)))
                replicas += promise.replicas
        self.copies.assume(cluster, assumed)
        self._promised_replicas[cluster] = replicas
        self._settled[cluster] = ledger.changes(cluster), copy.changes
        if verifies:
            self._follow_workloads(copy, ledger)

    def _report(self, copy: CopiedCluster) -> Freed:
        """What has arrived, where that is news to the ledger."""
        freed: Freed = set()
        ledger = self._ledger
        if ledger is None or not copy.rules.knows_owners:
            return freed
        before, now = self._reported.get(copy.name, {}), self._clock.monotonic()
        reported = self._reported[copy.name] = {}
        for promise in list(ledger.promises(copy.name)):
            if any(promise.promised):
                on_nodes = arrived(copy.pods_of, promise.assumed(promise.promised))
                if on_nodes.bound:
                    reported[promise.binding] = on_nodes
                    if before.get(promise.binding) != on_nodes:
                        freed |= ledger.report(copy.name, promise.binding, on_nodes, now)
        return freed

    def _follow_workloads(self, copy: CopiedCluster, ledger: PromiseLedger) -> None:
        wanted = {
            (template.namespace, template.api_version, template.kind, template.name)
            for template in (promise.template for promise in ledger.promises(copy.name))
        }
        followed = self._followed.get(copy.name, set())
        if wanted == followed:
            return
        for workload in followed - wanted:
            copy.workloads.pop(workload, None)
        self._followed[copy.name] = wanted
        self.follow(copy.name, sorted(wanted - followed), sorted(followed - wanted))
