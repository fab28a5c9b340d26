"""`Rooms/Follow`: our schedulers keep copies of the rooms of many clusters over one stream.

The difference to a caller's copy is computed when it can be sent, at most ten times a second; a slow reader
gets larger changes less often. A cluster whose answers depend on more than nodes and quotas has no room that
could be copied: its callers are told so, and ask.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from karpool.cluster.aspects import Aspect
from karpool.estimator.plugins.node_resource import NodeResourceEstimator
from karpool.estimator.plugins.resource_quota import ResourceQuotaEstimator
from karpool.estimator.serving.member import MemberEstimator
from karpool.estimator.serving.room_watch import TooManyWatchers
from karpool.kube.clock import Clock
from karpool.kube.expiring import ExpiringMap
from karpool.rooms.publisher import PublishedRoom, RoomPublisher, TooLarge
from karpool.rooms.room_change import PROTOCOL, WORKLOADS_MAX, PodsOfWorkload, WorkloadKey, workload_key
from karpool.wire.proto import rooms_pb2 as pb
from karpool.wire.server_protocol import MessageTooLarge, parse

GATHER_SECONDS = 0.1  # changes within this time are sent together
BEAT_SECONDS = 1.0
RESUME_SECONDS = 60.0  # how long sent states are kept after a stream has ended
_SENT_KEPT = 4  # states per room: the last ones may not have arrived
_RESUMABLE = 64  # states per cluster
_REASON_MAX = 200


def rules_of(member: MemberEstimator) -> pb.RoomRules | str:
    """How answers follow from the room; or why they do not."""
    counts_nodes = False
    rules = pb.RoomRules(knows_owners=Aspect.OWNERS in member.cluster.aspects)
    for plugin in member.framework.plugins:
        match plugin:
            case NodeResourceEstimator(enabled=True):
                counts_nodes = True
            case ResourceQuotaEstimator():
                rules.counts_quotas = plugin.enabled
                rules.quotas_match_all = plugin.matching == "all"
            case _:
                return f"{plugin.name} answers too"
    if Aspect.DRA in member.cluster.aspects:
        return "devices of DRA drivers are not part of room streams"
    return rules if counts_nodes else "its nodes do not count"


class MemberRoom:
    """The room of one cluster, for all its followers."""

    def __init__(self, member: MemberEstimator, clock: Clock) -> None:
        self.member = member
        rules = rules_of(member)
        self._why_not = rules if isinstance(rules, str) else ""
        self.publisher = RoomPublisher(rules if isinstance(rules, pb.RoomRules) else pb.RoomRules())
        # The sent states of ended streams, by epoch and sequence, for callers that reconnect.
        self._sent = ExpiringMap[tuple[int, int], PublishedRoom](clock, RESUME_SECONDS, _RESUMABLE)

    def withheld(self) -> str:
        """Why the room cannot be followed; empty if it can."""
        if self._why_not:
            return self._why_not
        if reason := self.member.not_ready():
            return reason
        return "it has sent no update for too long" if self.member.stale else ""

    def sent_before(self, epoch: int, sequence: int) -> PublishedRoom | None:
        return self._sent.get((epoch, sequence))

    def remember(self, sent: "deque[PublishedRoom]") -> None:
        for state in sent:
            self._sent.put((state.epoch, state.sequence), state)


class _Seen(NamedTuple):
    """The inputs of the last comparison: nothing is computed while they are the same."""

    changes: int
    follows: int


@dataclass
class RoomSubscription:
    room: MemberRoom
    sent: "deque[PublishedRoom]" = field(default_factory=lambda: deque(maxlen=_SENT_KEPT))
    followed: dict[WorkloadKey, PodsOfWorkload | None] = field(default_factory=dict)  # as last sent
    follows: int = 0  # number of changes of `followed`
    seen: _Seen | None = None
    withheld: str | None = None  # as last sent

    def messages(self, cluster: str, clock: Clock) -> list[pb.RoomFrame]:
        """The messages that the caller needs now."""
        reason = self.room.withheld()
        if reason:
            return self._withdraw(cluster, reason)
        self.withheld = ""
        seen = _Seen(self.room.member.cluster.changes, self.follows)
        if seen == self.seen:
            return []
        try:
            state = self.room.publisher.publish(self.room.member.cluster.snapshot(clock.now()))
        except TooLarge as error:
            return self._withdraw(cluster, str(error))
        workloads = self._told_workloads()
        before = self.sent[-1] if self.sent else None
        is_first, self.seen = self.seen is None, seen
        if state is before and not workloads and not is_first:
            return []
        if state is not before:
            self.sent.append(state)
        parts = self.room.publisher.parts(cluster, before, state, workloads)
        return [pb.RoomFrame(patch=part) for part in parts]

    def _withdraw(self, cluster: str, reason: str) -> list[pb.RoomFrame]:
        self.sent.clear()
        self.seen = None
        self.followed = dict.fromkeys(self.followed)
        if self.withheld == reason:
            return []
        self.withheld = reason
        withdrawn = pb.RoomWithdrawn(cluster=cluster, reason=reason[:_REASON_MAX])
        return [pb.RoomFrame(withdrawn=withdrawn)]

    def _told_workloads(self) -> dict[WorkloadKey, PodsOfWorkload]:
        """The followed workloads that have changed."""
        cluster = self.room.member.cluster
        if Aspect.OWNERS not in cluster.aspects:
            return {}
        changed: dict[WorkloadKey, PodsOfWorkload] = {}
        for workload, told in self.followed.items():
            pods = cluster.replicas_of(*workload)
            if pods != told:
                changed[workload] = self.followed[workload] = pods
        return changed


class RoomStreams:
    """`streams_max`: maximum number of concurrent followers."""

    def __init__(self, members: Mapping[str, MemberEstimator], clock: Clock, streams_max: int = 50) -> None:
        self._members, self._clock, self._streams_max = members, clock, streams_max
        self.instance = secrets.token_hex(16)
        self.streams = 0
        self._rooms: dict[str, MemberRoom] = {}

    async def follow(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The messages for a caller, until it leaves. Raises TooManyWatchers, and request errors."""
        if self.streams >= self._streams_max:
            raise TooManyWatchers(
                f"{self.streams} room streams are already open; use MaxAvailableReplicas instead"
            )
        stream = _Stream(self, self._clock)
        self.streams += 1
        reading = asyncio.ensure_future(stream.read(requests))
        try:
            yield self._hello()
            async for frame in stream.frames(reading):
                yield frame
        finally:
            self.streams -= 1
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            stream.close()

    def room(self, cluster: str) -> MemberRoom | None:
        """None for a cluster that is not served; a cluster that was removed and added is a new one."""
        member = self._members.get(cluster)
        if member is None:
            self._rooms.pop(cluster, None)
            return None
        room = self._rooms.get(cluster)
        if room is None or room.member is not member:
            room = self._rooms[cluster] = MemberRoom(member, self._clock)
        return room

    def _hello(self) -> bytes:
        hello = pb.RoomHello(protocol=PROTOCOL, instance=self.instance)
        return pb.RoomFrame(hello=hello).SerializeToString()


class _Stream:
    def __init__(self, streams: RoomStreams, clock: Clock) -> None:
        self._streams, self._clock = streams, clock
        self._subscriptions: dict[str, RoomSubscription] = {}
        self._unknown: list[str] = []  # clusters that are not served, to be reported

    async def read(self, requests: AsyncIterator[bytes]) -> None:
        """Returns when the caller closes its side, which ends the stream."""
        async for data in requests:
            request = parse(pb.FollowRequest, data)
            for cluster in request.leave:
                self._leave(cluster)
            for room in request.rooms:
                self._join(room)

    def _join(self, request: pb.RoomSubscription) -> None:
        cluster = request.cluster
        room = self._streams.room(cluster)
        if room is None:
            self._unknown.append(cluster[:253])
            return
        subscription = self._subscriptions.get(cluster)
        if subscription is None or subscription.room is not room:
            subscription = self._subscriptions[cluster] = RoomSubscription(room)
            state = room.sent_before(request.epoch, request.sequence)
            if state is not None:
                subscription.sent.append(state)
        elif request.anew:
            subscription.sent.clear()
            subscription.seen = None
            subscription.followed = dict.fromkeys(subscription.followed)
        subscription.follows += 1
        for workload in map(workload_key, request.unfollow):
            subscription.followed.pop(workload, None)
        for workload in map(workload_key, request.follow):
            subscription.followed.setdefault(workload, None)
        if len(subscription.followed) > WORKLOADS_MAX:
            raise MessageTooLarge(f"more than {WORKLOADS_MAX} workloads of {cluster[:253]} are followed")

    def _leave(self, cluster: str) -> None:
        subscription = self._subscriptions.pop(cluster, None)
        if subscription is not None:
            subscription.room.remember(subscription.sent)

    def close(self) -> None:
        for cluster in list(self._subscriptions):
            self._leave(cluster)

    async def frames(self, reading: "asyncio.Future[None]") -> AsyncIterator[bytes]:
        beat_at = self._clock.monotonic() + BEAT_SECONDS
        while not reading.done():
            for cluster in self._unknown:
                withdrawn = pb.RoomWithdrawn(cluster=cluster, reason="this estimator does not serve it")
                yield pb.RoomFrame(withdrawn=withdrawn).SerializeToString()
            self._unknown.clear()
            for cluster in list(self._subscriptions):
                for frame in self._messages(cluster):
                    yield frame.SerializeToString()
                if self._clock.monotonic() >= beat_at:  # also while many rooms are sent for the first time
                    yield self._beat().SerializeToString()
                    beat_at = self._clock.monotonic() + BEAT_SECONDS
            await self._clock.sleep(GATHER_SECONDS)
        reading.result()  # raises if the caller's request was refused

    def _messages(self, cluster: str) -> list[pb.RoomFrame]:
        subscription = self._subscriptions.get(cluster)
        if subscription is None:
            return []  # it was removed a moment ago
        if self._streams.room(cluster) is not subscription.room:
            del self._subscriptions[cluster]
            self._unknown.append(cluster)
            return []
        return subscription.messages(cluster, self._clock)

    def _beat(self) -> pb.RoomFrame:
        ages = [
            pb.RoomAge(
                cluster=cluster,
                seconds=subscription.room.member.staleness(),
                epoch=subscription.sent[-1].epoch,
                sequence=subscription.sent[-1].sequence,
            )
            for cluster, subscription in self._subscriptions.items()
            if subscription.sent and not subscription.withheld
        ]
        return pb.RoomFrame(beat=pb.RoomBeat(ages=ages))
