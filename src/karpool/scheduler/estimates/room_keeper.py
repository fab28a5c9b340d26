"""Keeps the streams of room changes: one for each estimator process, whatever clusters it serves.

Every cluster's estimator is called; the first frame names the process that answered. If a stream to that
process exists, the cluster joins it and the call ends. An interrupted cluster is retried on its own. An
estimator that is older, of another vendor or of another version is asked as usual.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import grpc
import structlog

from karpool.kube.clock import Clock
from karpool.model.errors import ModelError
from karpool.rooms.room_change import PROTOCOL, RoomChangeReader, RoomChangeRefused, WorkloadKey
from karpool.scheduler.estimates.estimator_client import (
    EstimatorRefused,
    EstimatorUnreachable,
    UnknownMethod,
    estimator_errors,
)
from karpool.scheduler.estimates.local_rooms import LocalRooms
from karpool.wire.proto import rooms_pb2 as pb
from karpool.wire.requests import ROOMS
from karpool.wire.server_protocol import parse

log = structlog.get_logger(__name__)

METHOD = f"/{ROOMS}/Follow"
_HELLO_SECONDS = 10.0
_SILENCE_SECONDS = 20.0  # an estimator sends a heartbeat every second
_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_NOT_OURS_SECONDS = 300.0  # an estimator may be replaced by one of ours
_GATHER_SECONDS = 0.02  # workloads to follow arrive one decision after another


class Channels(Protocol):
    """The part of `EstimatorClient` that is used here."""

    async def __call__(self, cluster: str, *, anew: bool = False) -> grpc.aio.Channel: ...


class _Call(Protocol):
    """The part of a stream's call that is used here."""

    async def read(self) -> Any: ...

    async def write(self, data: bytes) -> None: ...

    def cancel(self) -> bool: ...


class NotFollowable(Exception):
    """The estimator is of another vendor or version."""


class RoomKeeper:
    """`channels` opens the channel to a cluster's estimator."""

    def __init__(self, channels: Channels, rooms: LocalRooms, clock: Clock) -> None:
        self._channels, self._rooms, self._clock = channels, rooms, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._streams: dict[str, _RoomStream] = {}  # by process
        self._stream_of: dict[str, _RoomStream] = {}  # by cluster
        self._failures: dict[str, int] = {}
        self._unreachable: set[str] = set()  # at the last attempt
        rooms.follow = self._follow_workloads

    def keep(self, clusters: Collection[str]) -> None:
        """Start with new clusters, and stop with removed ones."""
        for name in [name for name in self._tasks if name not in clusters]:
            self._tasks.pop(name).cancel()
            stream = self._stream_of.pop(name, None)
            if stream is not None:
                stream.leave(name)
            self._rooms.left(name)
            self._heard(name)
        for name in clusters:
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._keep(name), name=f"room of {name}")

    async def close(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def streams(self) -> int:
        return len(self._streams)

    async def _keep(self, cluster: str) -> None:
        while True:
            pause = 0.0
            try:
                await self._follow(cluster)
                reason = "its stream has ended"
            except EstimatorUnreachable as error:
                reason = str(error)
                self._unreachable.add(cluster)
            except NotFollowable as error:
                reason, pause = str(error), _NOT_OURS_SECONDS
            except (EstimatorRefused, ModelError, TimeoutError) as error:
                reason = str(error) or "no update was received"
            except Exception as error:  # an error here must not end the other streams
                log.exception("room stream failed", cluster=cluster)
                reason = f"{type(error).__name__}"
            self._rooms.cut(cluster, reason)
            failures = self._failures[cluster] = self._failures.get(cluster, 0) + 1
            level = log.info if pause == 0.0 and failures == 1 else log.debug
            level("no room stream; its estimator is asked", cluster=cluster, reason=reason)
            delay = pause or _BACKOFF_SECONDS[min(failures - 1, len(_BACKOFF_SECONDS) - 1)]
            await self._clock.sleep(delay)

    async def _follow(self, cluster: str) -> None:
        """Follow a cluster; returns when its stream has ended."""
        channel = await self._channels(cluster, anew=cluster in self._unreachable)
        open_stream = getattr(channel, "stream_stream", None)
        if open_stream is None:
            raise NotFollowable("its estimator is called without streams")
        call: _Call = open_stream(METHOD)()
        try:
            await _written(call, pb.FollowRequest(protocol=PROTOCOL))
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = await _read(call)
            if hello is None or not hello.HasField("hello") or hello.hello.protocol != PROTOCOL:
                raise NotFollowable("its estimator has another protocol version")
            instance = hello.hello.instance[:64]
            carrier = self._streams.get(instance)
            if carrier is None:
                await self._carry(instance, _RoomStream(call, self._rooms, self._clock, self._heard), cluster)
                return
        finally:
            call.cancel()
        self._stream_of[cluster] = carrier
        carrier.join(cluster)
        await carrier.ended.wait()

    async def _carry(self, instance: str, stream: "_RoomStream", cluster: str) -> None:
        self._streams[instance] = stream
        self._stream_of[cluster] = stream
        try:
            stream.join(cluster)
            await stream.run()
        finally:
            del self._streams[instance]
            for name in [name for name, other in self._stream_of.items() if other is stream]:
                del self._stream_of[name]
                self._rooms.cut(name, "its stream has ended")
            stream.ended.set()

    def _heard(self, cluster: str) -> None:
        self._failures.pop(cluster, None)
        self._unreachable.discard(cluster)

    def _follow_workloads(
        self, cluster: str, more: Sequence[WorkloadKey], less: Sequence[WorkloadKey]
    ) -> None:
        stream = self._stream_of.get(cluster)
        if stream is not None:
            stream.follow(cluster, more, less)


class _RoomStream:
    """One call to one process."""

    def __init__(self, call: _Call, rooms: LocalRooms, clock: Clock, heard: Callable[[str], None]) -> None:
        self._call, self._rooms, self._clock, self._on_heard = call, rooms, clock, heard
        self.ended = asyncio.Event()
        self._readers: dict[str, RoomChangeReader] = {}  # of its clusters
        self._refusals: dict[str, int] = {}
        self._again_at: dict[str, float] = {}  # clusters with lost copies, and when to request them again
        self._outbox: dict[str, pb.RoomSubscription] = {}
        self._leaving: list[str] = []
        self._to_write = asyncio.Event()

    def join(self, cluster: str) -> None:
        self._readers[cluster] = RoomChangeReader()
        copy = self._rooms.copies.get(cluster)
        message = self._message(cluster)
        if copy is not None:
            message.epoch, message.sequence = copy.epoch, copy.sequence
        message.follow.extend(map(_workload, self._rooms.followed(cluster)))

    def leave(self, cluster: str) -> None:
        if self._readers.pop(cluster, None) is not None:
            self._leaving.append(cluster)
            self._to_write.set()
        if not self._readers:
            self._call.cancel()

    def follow(self, cluster: str, more: Sequence[WorkloadKey], less: Sequence[WorkloadKey]) -> None:
        message = self._message(cluster)
        message.follow.extend(map(_workload, more))
        message.unfollow.extend(map(_workload, less))

    def _message(self, cluster: str) -> pb.RoomSubscription:
        self._to_write.set()
        return self._outbox.setdefault(cluster, pb.RoomSubscription(cluster=cluster))

    async def run(self) -> None:
        """Run until the stream ends; raises the reason."""
        writing = asyncio.create_task(self._write())
        try:
            while not writing.done():
                async with asyncio.timeout(_SILENCE_SECONDS):
                    frame = await _read(self._call)
                if frame is None:
                    return
                self._take(frame)
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._to_write.wait()
            await self._clock.sleep(_GATHER_SECONDS)
            self._to_write.clear()
            rooms, self._outbox = list(self._outbox.values()), {}
            leaving, self._leaving = self._leaving, []
            await _written(self._call, pb.FollowRequest(rooms=rooms, leave=leaving))

    def _take(self, frame: pb.RoomFrame) -> None:
        match frame.WhichOneof("content"):
            case "patch":
                self._change(frame.patch)
            case "beat":
                for age in frame.beat.ages:
                    if age.cluster in self._readers:
                        self._rooms.beat(age.cluster, age.epoch, age.sequence, age.seconds)
                self._ask_again()
            case "withdrawn":
                cluster = frame.withdrawn.cluster
                if cluster in self._readers:
                    self._readers[cluster] = RoomChangeReader()
                    self._rooms.forget(cluster, frame.withdrawn.reason[:200])

    def _change(self, patch: pb.RoomPatch) -> None:
        reader = self._readers.get(patch.cluster)
        if reader is None or patch.cluster in self._again_at:
            return  # the cluster left, or the frame belongs to a lost copy
        try:
            change = reader.read(patch)
            if change is not None:
                self._rooms.apply(change)
                self._on_heard(patch.cluster)
        except RoomChangeRefused as error:
            self._lost(patch.cluster, str(error))

    def _lost(self, cluster: str, reason: str) -> None:
        """Drop the copy of one cluster; its estimator is asked until the whole was sent again."""
        log.warning("room patch refused", cluster=cluster, reason=reason)
        self._rooms.forget(cluster, f"refused: {reason}"[:200])
        self._readers[cluster] = RoomChangeReader()
        refusals = self._refusals[cluster] = self._refusals.get(cluster, 0) + 1
        delay = _BACKOFF_SECONDS[min(refusals - 1, len(_BACKOFF_SECONDS) - 1)]
        self._again_at[cluster] = self._clock.monotonic() + delay

    def _ask_again(self) -> None:
        now = self._clock.monotonic()
        for cluster in [name for name, at in self._again_at.items() if at <= now]:
            del self._again_at[cluster]
            if cluster in self._readers:
                self._message(cluster).anew = True


def _workload(workload: WorkloadKey) -> pb.FollowedWorkload:
    namespace, api_version, kind, name = workload
    return pb.FollowedWorkload(namespace=namespace, api_version=api_version, kind=kind, name=name)


async def _read(call: _Call) -> pb.RoomFrame | None:
    """None at the end. Raises what `_stream_errors` raises, and MalformedMessage."""
    with _stream_errors():
        data = await call.read()
    return None if data is grpc.aio.EOF else parse(pb.RoomFrame, data)


async def _written(call: _Call, message: pb.FollowRequest) -> None:
    with _stream_errors():
        await call.write(message.SerializeToString())


@contextmanager
def _stream_errors() -> Iterator[None]:
    """Convert gRPC errors to EstimatorUnreachable, EstimatorRefused or NotFollowable."""
    try:
        with estimator_errors():
            yield
    except UnknownMethod:
        raise NotFollowable("its estimator has no room stream") from None
