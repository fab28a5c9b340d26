"""Members that start together or not at all.

A gang waits at the gate until enough members exist, and holds its reservations until
enough members have one; then all go on at once. When it cannot be completed, all
reservations are given up together and the group rests. Who exists and who waits is
told by the caller, with the time.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from karpool.model.devices.request import Gang

REST_SECONDS = 10.0


class GangPhase(StrEnum):
    PENDING = "Pending"
    WAITING = "Waiting"
    SCHEDULING = "Scheduling"
    RUNNING = "Running"
    TIMED_OUT = "TimedOut"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class GangPermit:
    """`wait` (for so many seconds; None: for ever), or go on with all of `released`."""

    allowed: bool
    released: tuple[str, ...] = ()
    remaining_seconds: float | None = None


@dataclass
class GangGroup:
    gang: Gang
    phase: GangPhase = GangPhase.PENDING
    waiting: dict[str, float] = field(default_factory=dict)  # uid, since
    allowed: set[str] = field(default_factory=set)
    had_quorum: bool = False

    def started(self) -> float | None:
        return min(self.waiting.values(), default=None)


@dataclass
class GangTracker:
    groups: dict[str, GangGroup] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)  # group, until

    def may_enter(self, gang: Gang, peers: Collection[str], now: float) -> bool:
        """At the gate: enough members exist and the group does not rest. Late members always pass."""
        if self.resting.get(gang.group, now) > now:
            return False
        group = self.groups.get(gang.group)
        return (group is not None and group.had_quorum) or len(peers) >= gang.required_members

    def permit(self, gang: Gang, uid: str, now: float) -> GangPermit:
        """This member has its reservation."""
        group = self.groups.setdefault(gang.group, GangGroup(gang))
        if group.had_quorum:
            group.allowed.add(uid)
            return GangPermit(True, (uid,))
        group.waiting.setdefault(uid, now)
        if len(group.waiting) < gang.required_members:
            group.phase = GangPhase.WAITING
            return GangPermit(False, remaining_seconds=self._remaining(group, now))
        released = tuple(group.waiting)
        group.allowed.update(released)
        group.waiting.clear()
        group.had_quorum, group.phase = True, GangPhase.SCHEDULING
        return GangPermit(True, released)

    def unschedulable(self, gang: Gang, peers: Collection[str], now: float) -> tuple[str, ...]:
        """One member found no room: give up together, unless members are still arriving."""
        if len(peers) < gang.required_members:
            return ()
        return self.reject(gang.group, now, GangPhase.FAILED)

    def reject(self, name: str, now: float, phase: GangPhase = GangPhase.FAILED) -> tuple[str, ...]:
        """All waiting members lose their reservation, and the group rests."""
        self.resting[name] = now + REST_SECONDS
        group = self.groups.get(name)
        if group is None:
            return ()
        rejected = tuple(group.waiting)
        group.waiting.clear()
        group.phase = phase
        return rejected

    def expire(self, now: float) -> dict[str, tuple[str, ...]]:
        """Groups whose time is over, and the members that lose their reservation."""
        late = [
            name
            for name, group in self.groups.items()
            if group.waiting and (left := self._remaining(group, now)) is not None and left <= 0
        ]
        self.resting = {name: until for name, until in self.resting.items() if until > now}
        return {name: self.reject(name, now, GangPhase.TIMED_OUT) for name in late}

    def remove(self, uid: str) -> None:
        """A member is gone: it counts no more. The last one takes the group with it."""
        for name, group in list(self.groups.items()):
            group.waiting.pop(uid, None)
            group.allowed.discard(uid)
            if not group.waiting and not group.allowed and group.phase is not GangPhase.PENDING:
                del self.groups[name]

    def running(self, uids: Iterable[str]) -> None:
        """These members are bound."""
        bound = set(uids)
        for group in self.groups.values():
            if group.had_quorum and len(group.allowed & bound) >= group.gang.required_members:
                group.phase = GangPhase.RUNNING

    @property
    def waiting(self) -> frozenset[str]:
        """Members whose reservation must not be swept."""
        return frozenset(uid for group in self.groups.values() for uid in group.waiting)

    def _remaining(self, group: GangGroup, now: float) -> float | None:
        started = group.started()
        if not group.gang.timeout_seconds or started is None:
            return None
        return started + group.gang.timeout_seconds - now
