"""Asks the estimators of member clusters, each independently.

An estimator that fails, is slow or answers wrongly only affects its own cluster: every call has its own
deadline, including the wait for a slot, and after a failure the cluster is skipped for a while, so that one
unreachable server does not slow down every decision. Answers are validated: only a plausible number is
accepted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import structlog

from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.decision_id import HEADER, current
from karpool.kube.errors import KubeError, NotFound
from karpool.model.errors import Invalid, ModelError
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.kubernetes.api_resources import SERVICES
from karpool.scheduler.estimates.estimate_cache import EstimatorReply, RoomSilence
from karpool.wire import client_protocol
from karpool.wire.addresses import PORT, SERVICE_PREFIX, resolve, service_name
from karpool.wire.channels import ChannelPool, ClientTls
from karpool.wire.client_protocol import CapacitySummary, EncodedQuestion
from karpool.wire.proto import room_pb2, summary_pb2
from karpool.wire.requests import ESTIMATOR, ROOM_WATCHER, SUMMARIZER, WorkloadReference
from karpool.wire.server_protocol import parse

log = structlog.get_logger(__name__)

_UNKNOWN = -1  # Karmada's value for "unknown"
_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
_NOTE_MAX = 200
_ROOM_SECONDS = 45.0  # an estimator answers within 30 s, changed or not
_TURNS_OF_ONE = 16  # concurrent calls to one cluster
# Codes of an unreachable server; all others are an answer.
NOBODY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

Resolver = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    timeout_seconds: float = 3.0
    namespace: str = "karmada-system"
    prefix: str = SERVICE_PREFIX
    port: int = PORT
    asks_pull_clusters: bool = True
    tls: ClientTls = field(default_factory=ClientTls)
    concurrent: int = 256  # concurrent calls to all clusters


class ChannelOpener(Protocol):
    """The part of `ChannelPool` that is used; estimators in this process are reached without a network."""

    def renew(self) -> int: ...

    async def open(self, address: str) -> grpc.aio.Channel: ...


class EstimatorUnreachable(Exception):
    """The estimator cannot be reached."""


class EstimatorRefused(Exception):
    """The estimator is reachable, and refuses this call."""


class UnknownMethod(EstimatorRefused):
    """The estimator is older, or of another vendor."""


def service_resolver(client: Client, settings: EstimatorSettings) -> Resolver:
    """Resolve addresses like Karmada's schedulers: a Service in the Karmada API server, else DNS of the host
    cluster.
    """

    async def addresses(cluster: str) -> Sequence[str]:
        name = service_name(cluster, settings.prefix)
        try:
            service = await client.get(SERVICES, name, namespace=settings.namespace)
        except NotFound:
            service = {}
        return resolve(service.get("spec"), settings.namespace, name, settings.port)

    return addresses


class EstimatorClient:
    """One connection per cluster, opened at the first call. Raises Invalid for unusable files."""

    def __init__(
        self,
        resolver: Resolver,
        settings: EstimatorSettings,
        clock: Clock,
        channels: "ChannelOpener | None" = None,
    ) -> None:
        self.settings = settings
        self._resolver, self._clock = resolver, clock
        self._channels = channels or ChannelPool(settings.tls)
        self._turns = asyncio.Semaphore(settings.concurrent)
        self._members: dict[str, _Estimator] = {}
        self._closing = _Closing(settings.timeout_seconds)

    def asks(self, cluster: MemberCluster) -> bool:
        return cluster.sync_mode != "Pull" or self.settings.asks_pull_clusters

    async def ask(
        self, cluster: MemberCluster, asked: EncodedQuestion, promises: Sequence[bytes] = (), about: str = ""
    ) -> EstimatorReply:
        """`about` names the object for the server's log. Raises nothing except on cancellation."""
        if not self.asks(cluster):
            return EstimatorReply(None, "not asked, because the cluster is in Pull mode")
        method = "MaxAvailableComponentSets" if asked.for_sets else "MaxAvailableReplicas"
        return await self._reply(cluster.name, method, asked.to(cluster.name, promises), asked.read, about)

    async def unschedulable(
        self, cluster: str, resource: WorkloadReference, threshold_seconds: float
    ) -> EstimatorReply:
        """How many replicas have been without a node for longer than the threshold. Never raises."""
        data = client_protocol.write_unschedulable(cluster, resource, int(threshold_seconds * 1e9))
        about = f"kind={resource.kind}, name={resource.namespace}/{resource.name}"
        return await self._reply(cluster, "GetUnschedulableReplicas", data, _unschedulable, about)

    async def await_room(self, cluster: MemberCluster, seen: int) -> int | RoomSilence:
        """Wait until the generation of the capacity differs from `seen`, and return it; or why
        there is none.
        """
        if not self.asks(cluster):
            return RoomSilence.UNREACHABLE
        request = room_pb2.AwaitRoomRequest(cluster=cluster.name, seen=seen).SerializeToString()
        try:
            async with asyncio.timeout(_ROOM_SECONDS):
                answer = await self._member(cluster.name).watch("AwaitRoom", request)
            return parse(room_pb2.AwaitRoomResponse, answer).generation
        except UnknownMethod:
            return RoomSilence.NOT_OURS
        except (TimeoutError, EstimatorUnreachable, EstimatorRefused, ModelError):
            return RoomSilence.UNREACHABLE

    async def summary(self, cluster: MemberCluster) -> CapacitySummary:
        """The existing and possible capacity of the cluster. Raises EstimatorUnreachable or
        EstimatorRefused.
        """
        if not self.asks(cluster):
            raise EstimatorUnreachable("not asked, because the cluster is in Pull mode")
        member = self._member(cluster.name)
        request = summary_pb2.SummarizeRequest(cluster=cluster.name).SerializeToString()
        try:
            async with asyncio.timeout(self.settings.timeout_seconds), member.turns, self._turns:
                answer = await member.call("Summarize", request, "", service=SUMMARIZER)
            return client_protocol.read_summary(answer)
        except TimeoutError:
            member.failed(f"no answer within {self.settings.timeout_seconds:g} s")
            raise EstimatorUnreachable(member.trouble) from None
        except ModelError as error:
            raise EstimatorRefused(str(error)[:_NOTE_MAX]) from None

    async def channel(self, cluster: str, *, anew: bool = False) -> grpc.aio.Channel:
        """The connection to a cluster's estimator, for streams; `anew`: it may have moved. Raises
        EstimatorUnreachable.
        """
        member = self._member(cluster)
        if anew:
            member.look_up_again()
        return await member.open()

    def keep(self, clusters: Collection[str]) -> None:
        """Close the connections of all other clusters: these are gone."""
        for name in [member for member in self._members if member not in clusters]:
            self._members.pop(name).retire()

    async def close(self) -> None:
        self.keep(())
        await self._closing.done()

    def lost(self) -> dict[str, float]:
        """The clusters whose estimators cannot be reached, since when (monotonic)."""
        return {
            name: member.lost_since for name, member in self._members.items() if member.lost_since is not None
        }

    async def _reply(
        self,
        cluster: str,
        method: str,
        data: bytes,
        read: Callable[[bytes], client_protocol.EstimateAnswer],
        about: str,
    ) -> EstimatorReply:
        member = self._member(cluster)
        try:
            # A cluster's own slots come first: waiting for it must not take slots from others.
            async with asyncio.timeout(self.settings.timeout_seconds), member.turns, self._turns:
                answer = read(await member.call(method, data, about))
        except TimeoutError:
            member.failed(f"no answer within {self.settings.timeout_seconds:g} s")
            return EstimatorReply(None, member.trouble, lost_since=member.lost_since)
        except EstimatorUnreachable:
            return EstimatorReply(None, member.trouble, lost_since=member.lost_since)
        except (EstimatorRefused, ModelError) as error:
            return EstimatorReply(None, str(error)[:_NOTE_MAX])
        if answer.value == _UNKNOWN:
            return EstimatorReply(None, "says that it cannot tell", answer.arrived)
        if answer.value < 0:
            log.warning("estimator returned an invalid answer", cluster=cluster, answer=answer.value)
            return EstimatorReply(None, f"returned an invalid answer: {answer.value}", answer.arrived)
        return EstimatorReply(answer.value, "", answer.arrived, parts=answer.parts)

    def _member(self, cluster: str) -> "_Estimator":
        member = self._members.get(cluster)
        if member is None:
            member = self._members[cluster] = _Estimator(
                cluster, self._resolver, self._channels, self._closing, self._clock
            )
        return member


def _unschedulable(data: bytes) -> client_protocol.EstimateAnswer:
    return client_protocol.EstimateAnswer(client_protocol.read_unschedulable(data))


class _Estimator:
    """The connection to one cluster's estimator."""

    def __init__(
        self,
        cluster: str,
        resolver: Resolver,
        channels: "ChannelOpener",
        closing: "_Closing",
        clock: Clock,
    ) -> None:
        self._cluster, self._resolver, self._channels, self._clock = cluster, resolver, channels, clock
        self._closing = closing
        self.turns = asyncio.Semaphore(_TURNS_OF_ONE)
        self._opening = asyncio.Lock()
        self._channel: grpc.aio.Channel | None = None
        self._generation = -1
        self._address = 0  # index of the address in use
        self._addresses: Sequence[str] = ()
        self._failures = 0
        self._again_at = 0.0
        self._trying = False
        self._reason = ""
        self.lost_since: float | None = None

    @property
    def trouble(self) -> str:
        seconds = 0.0 if self.lost_since is None else self._clock.monotonic() - self.lost_since
        return f"unreachable for {seconds:.0f} s: {self._reason}"

    async def call(self, method: str, data: bytes, about: str, service: str = ESTIMATOR) -> bytes:
        """Raises Unreachable, at once while the last failure is recent, or Refused."""
        finds_out = self.lost_since is not None
        if finds_out:
            if self._trying or self._clock.monotonic() < self._again_at:
                raise EstimatorUnreachable
            self._trying = True  # for all callers
        try:
            answer = await self._call_any(method, data, about, service)
        except EstimatorRefused:
            self._is_back()
            raise
        finally:
            if finds_out:
                self._trying = False
        self._is_back()
        return answer

    async def watch(self, method: str, data: bytes) -> bytes:
        """A long call that takes no slot. It does not probe the server: raises Unreachable until another call
        succeeds after a failure.
        """
        if self.lost_since is not None:
            raise EstimatorUnreachable
        return await _call(await self.open(), method, data, "", service=ROOM_WATCHER)

    def _is_back(self) -> None:
        if self.lost_since is not None:
            log.info("estimator reachable again", cluster=self._cluster)
        self.lost_since, self._failures, self._reason = None, 0, ""

    def failed(self, reason: str) -> None:
        now = self._clock.monotonic()
        if self.lost_since is None:
            log.warning("estimator cannot be reached", cluster=self._cluster, reason=reason)
            self.lost_since = now
        self._reason = reason[:_NOTE_MAX]
        self._again_at = now + _BACKOFF_SECONDS[min(self._failures, len(_BACKOFF_SECONDS) - 1)]
        self._failures += 1
        self.look_up_again()

    def look_up_again(self) -> None:
        """Resolve the address again: the estimator may have moved."""
        self._addresses, self._address = (), 0

    def retire(self) -> None:
        """Let calls in progress finish; the next call opens another connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            self._closing.add(channel)

    async def _call_any(self, method: str, data: bytes, about: str, service: str) -> bytes:
        """Try the addresses in order, from the one that worked last."""
        tried = 0
        while True:
            channel = await self.open()
            try:
                return await _call(channel, method, data, about, service)
            except EstimatorUnreachable as error:
                tried += 1
                if tried >= len(self._addresses):
                    self.failed(str(error))
                    raise
                self._address += 1
                self.retire()

    async def open(self) -> grpc.aio.Channel:
        async with self._opening:
            generation = self._channels.renew()
            if self._channel is not None and self._addresses and generation == self._generation:
                return self._channel
            self.retire()
            try:
                if not self._addresses:
                    self._addresses = await self._resolver(self._cluster)
                address = self._addresses[self._address % len(self._addresses)]
                self._channel = await self._channels.open(address)
            except (OSError, KubeError, Invalid, ValueError) as error:
                self.failed(str(error))
                raise EstimatorUnreachable(str(error)) from error
            self._generation = generation
            return self._channel


class _Closing:
    """Channels that are being closed; calls on them may finish within the usual timeout."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close(self._grace_seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _call(
    channel: grpc.aio.Channel, method: str, data: bytes, about: str, service: str = ESTIMATOR
) -> bytes:
    metadata = tuple(
        (name, value)
        for name, value in (("object", about), (HEADER, current()))
        if value and value.isascii() and value.isprintable()
    )
    stub: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{service}/{method}")
    with estimator_errors():
        return await stub(data, metadata=metadata)


@contextmanager
def estimator_errors() -> Iterator[None]:
    """Convert gRPC errors to EstimatorUnreachable, UnknownMethod or EstimatorRefused."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code, details = error.code(), (error.details() or "")[:_NOTE_MAX]
        shown = "".join(character if character.isprintable() else " " for character in details)
        text = f"{code.name}: {shown}" if shown else code.name
        if code in NOBODY:
            raise EstimatorUnreachable(text) from None
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise UnknownMethod(text) from None
        raise EstimatorRefused(f"refused: {text}") from None
    except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:  # closed a moment ago
        raise EstimatorUnreachable(str(error)) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise EstimatorUnreachable("the connection was closed") from None  # how the library reports it
