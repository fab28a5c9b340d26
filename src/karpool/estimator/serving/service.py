"""The gRPC methods: parse a request, ask its cluster, encode the answer.

Requests arrive as bytes and are decoded here, so that an unreadable message gets the right status, and a
repeated one is decoded once. An error costs callers the answers of all other clusters, so everything that is
not the request's own fault is answered with -1, "unknown". Messages are those of Karmada's server, because
people search for them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeVar

import grpc
import structlog

from karpool.estimator.plugins.interface import CANNOT_TELL, EstimateCode
from karpool.estimator.serving import explain
from karpool.estimator.serving.fair_turns import BYTES_PER_UNIT, FairTurns, TooManyQuestions, cost_of
from karpool.estimator.serving.member import MemberEstimator
from karpool.estimator.serving.metrics import Call, EstimatorMetrics
from karpool.estimator.serving.room_stream import RoomStreams
from karpool.estimator.serving.room_watch import TooManyWatchers
from karpool.estimator.serving.summary import summarize
from karpool.estimator.serving.unschedulable import UnsupportedKind
from karpool.kube.clock import Clock, RealClock
from karpool.kube.decision_id import HEADER, KEY
from karpool.kube.errors import KubeError, NotFound, StatusError
from karpool.model.errors import Invalid
from karpool.wire import server_protocol
from karpool.wire.proto import explain_pb2, room_pb2, summary_pb2
from karpool.wire.requests import (
    ESTIMATOR,
    EXPLAINER,
    ROOM_WATCHER,
    ROOMS,
    SUMMARIZER,
    ArrivedReplicas,
    EstimateRequest,
    RoomParts,
    UnschedulableRequest,
)
from karpool.wire.server_protocol import MalformedMessage, MessageTooLarge


class RequestRefused(Exception):
    """The request is answered with an error; the text is for the caller."""


class WrongCluster(RequestRefused):
    pass


def check_cluster(asked: str, served: Collection[str]) -> None:
    if asked not in served:
        desired = ", ".join(sorted(served)[:20])
        raise WrongCluster(f"cluster name does not match, got: {asked[:253]}, desire: {desired}")


def failure(reasons: Iterable[str], *, sets: bool) -> RequestRefused:
    """The error for a plugin's Error. Karmada parses quantities and affinities inside a plugin, so invalid
    ones are reported in the same words.
    """
    what = "component sets: estimate components" if sets else "replicas: estimate replica"
    return RequestRefused(f"failed to estimate {what} plugins fails with [{' '.join(reasons)}]")


log = structlog.get_logger(__name__)

SLOW_SECONDS = 0.1
_DETAILS_MAX = 1000
_NOTE_MAX = 200
_REMEMBERED = 512  # decoded requests
_REMEMBERED_BYTES = 4 * 1024  # per cached request; larger ones are parsed in a thread

Context = grpc.aio.ServicerContext[Any, Any]
R = TypeVar("R")


class ClusterNotSynced(Exception):
    """The cluster is not synced yet; a caller may try again."""


class RequestDecoder:
    """Caches decoded requests by their bytes; schedulers repeat the same requests."""

    def __init__(self, read: Callable[[bytes], R]) -> None:
        self._read = read
        self._known: dict[bytes, Any] = {}

    def __call__(self, data: bytes) -> Any:
        request = self._known.get(data)
        if request is None:
            request = self._read(data)
            if len(data) <= _REMEMBERED_BYTES:
                if len(self._known) >= _REMEMBERED:
                    del self._known[next(iter(self._known))]
                self._known[data] = request
        return request


class EstimatorService:
    """`members` are the clusters by name. `cannot_tell_until_synced`: -1 instead of UNAVAILABLE."""

    def __init__(
        self,
        members: Mapping[str, MemberEstimator],
        metrics: EstimatorMetrics,
        *,
        clock: Clock | None = None,
        cannot_tell_until_synced: bool = False,
        watchers_max: int = 500,
        reads_aside: bool = False,
    ) -> None:
        """`watchers_max`: calls that may wait for capacity at once; questions need the other slots.

        `reads_aside`: parse large requests in another thread, so that small ones do not wait for them.
        """
        self._members = members
        self._metrics = metrics
        self._clock = clock or RealClock()
        self._patient = cannot_tell_until_synced
        self._watchers, self._watchers_max = 0, watchers_max
        self.streams = RoomStreams(members, self._clock, max(1, watchers_max // 4))
        self._turns = FairTurns(max(1, watchers_max // 2))
        self._reading = FairTurns(max(1, watchers_max // 2)) if reads_aside else None
        self._read_replicas = RequestDecoder(server_protocol.read_replicas)
        self._read_sets = RequestDecoder(server_protocol.read_component_sets)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        estimator = {
            "MaxAvailableReplicas": self.max_available_replicas,
            "MaxAvailableComponentSets": self.max_available_component_sets,
            "GetUnschedulableReplicas": self.get_unschedulable_replicas,
        }
        return [
            _handler(ESTIMATOR, estimator),
            _handler(EXPLAINER, {"Explain": self.explain}),
            _handler(ROOM_WATCHER, {"AwaitRoom": self.await_room}),
            _handler(SUMMARIZER, {"Summarize": self.summarize}),
            grpc.method_handlers_generic_handler(
                ROOMS, {"Follow": grpc.stream_stream_rpc_method_handler(self.follow_rooms)}
            ),
        ]

    async def max_available_replicas(self, data: bytes, context: Context) -> bytes:
        return await self._estimated(
            "MaxAvailableReplicas", self._read_replicas, server_protocol.write_replicas, data, context
        )

    async def max_available_component_sets(self, data: bytes, context: Context) -> bytes:
        write = server_protocol.write_component_sets
        return await self._estimated("MaxAvailableComponentSets", self._read_sets, write, data, context)

    async def get_unschedulable_replicas(self, data: bytes, context: Context) -> bytes:
        start = perf_counter()
        call: Call = "GetUnschedulableReplicas"
        try:
            request = server_protocol.read_unschedulable(data)
            count = await self._unschedulable(request)
        except Exception as error:
            return await self._fail(call, error, perf_counter() - start, context)
        self._metrics.answered(call, count, perf_counter() - start)
        return server_protocol.write_unschedulable(count)

    async def explain(self, data: bytes, context: Context) -> bytes:
        try:
            message = server_protocol.parse(explain_pb2.ExplainRequest, data)
            request, topology = explain.read(message)
            member = self._member(request.cluster)
            if reason := member.not_ready():
                raise ClusterNotSynced(reason)
            question = member.question(request, topology=topology)
            outcome = await member.framework.run(question)
            text = explain.explanation(question, outcome, member.informers.unseen())
            return explain.write(text).SerializeToString()
        except Exception as error:
            return await self._refuse("Explain", error, context)

    async def await_room(self, data: bytes, context: Context) -> bytes:
        try:
            message = server_protocol.parse(room_pb2.AwaitRoomRequest, data)
            member = self._member(message.cluster)
            if reason := member.not_ready():
                raise ClusterNotSynced(reason)
            if self._watchers >= self._watchers_max:
                raise TooManyWatchers(f"{self._watchers} callers are already waiting; try again later")
            self._watchers += 1
            try:
                generation = await member.rooms.beyond(message.seen)
            finally:
                self._watchers -= 1
            return room_pb2.AwaitRoomResponse(generation=generation).SerializeToString()
        except Exception as error:
            return await self._refuse("AwaitRoom", error, context)

    async def summarize(self, data: bytes, context: Context) -> bytes:
        try:
            member = self._member(server_protocol.parse(summary_pb2.SummarizeRequest, data).cluster)
            if reason := member.not_ready():
                raise ClusterNotSynced(reason)
            if member.stale:
                raise ClusterNotSynced(f"no update for {member.staleness():.0f} s")
            snapshot = member.cluster.snapshot(self._clock.now())
            return summarize(snapshot, member.framework.plugins).SerializeToString()
        except Exception as error:
            return await self._refuse("Summarize", error, context)

    async def follow_rooms(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        try:
            async for frame in self.streams.follow(requests):
                yield frame
        except Exception as error:
            await self._refuse("Follow", error, context)

    async def _estimated(
        self,
        call: Call,
        read: RequestDecoder,
        write: Callable[[int, Sequence[ArrivedReplicas], RoomParts | None], bytes],
        data: bytes,
        context: Context,
    ) -> bytes:
        start = perf_counter()
        caller, units = _caller(context), 1 + len(data) // BYTES_PER_UNIT
        try:
            request = None
            if self._reading is not None and len(data) > _REMEMBERED_BYTES:
                async with self._reading.turn(caller, units):
                    request = await asyncio.to_thread(read, data)
            async with self._turns.turn(caller, units) as meter:
                request = request or read(data)
                member = self._members.get(request.cluster)
                if member is not None:
                    meter.charge(cost_of(request, member.nodes))
            # The next question runs after this answer: nothing below awaits, except third-party plugins.
            answer, arrived, parts = await self._estimate(request)
        except Exception as error:
            return await self._fail(call, error, perf_counter() - start, context)
        seconds = perf_counter() - start
        self._metrics.answered(call, answer, seconds)
        if seconds > SLOW_SECONDS:
            took = round(seconds * 1000, 1)
            log.info("slow request", call=call, took_ms=took, bytes=len(data), **_asked_by(context))
        return write(answer, arrived, parts)

    async def _estimate(
        self, request: EstimateRequest
    ) -> tuple[int, Sequence[ArrivedReplicas], RoomParts | None]:
        member = self._member(request.cluster)
        if reason := member.not_ready():
            if self._patient:
                return CANNOT_TELL, (), None
            raise ClusterNotSynced(reason)
        if member.stale:
            log.warning("cluster is stale", cluster=member.name, seconds=round(member.staleness()))
            return CANNOT_TELL, (), None
        question = member.question(request)
        outcome = await member.framework.run(question)
        if outcome.code is EstimateCode.ERROR:
            raise failure(outcome.reasons, sets=question.for_sets)
        parts = outcome.room_parts if request.wants_parts and outcome.parts else None
        return outcome.answer, question.arrived, parts

    async def _unschedulable(self, request: UnschedulableRequest) -> int:
        member = self._member(request.cluster)
        reference = request.resource
        if reference is None:
            raise RequestRefused("resource is nil")
        if reason := member.not_ready():
            raise ClusterNotSynced(reason)
        start = perf_counter()
        try:
            count = await member.unschedulable(reference, request.threshold_ns, self._clock.now())
        except NotFound as error:
            group = reference.api_version.partition("/")[0] if "/" in reference.api_version else ""
            kind = f"{reference.kind.lower()}s.{group}".rstrip(".")
            self._metrics.step("error", "GetObjectFromCache", perf_counter() - start)
            raise RequestRefused(f'{kind} "{reference.name}" not found') from error
        except ValueError as error:  # a name that cannot be part of a path
            raise RequestRefused(str(error)) from error
        self._metrics.step("success", "GetWorkloadUnschedulablePods", perf_counter() - start)
        return count

    def _member(self, cluster: str) -> MemberEstimator:
        member = self._members.get(cluster)
        if member is None:
            check_cluster(cluster, self._members)
            raise AssertionError("unreachable")
        return member

    async def _fail(self, call: Call, error: Exception, seconds: float, context: Context) -> bytes:
        self._metrics.failed(call, seconds, _status(error)[1])
        if isinstance(error, Invalid):
            error = failure([str(error)], sets=call == "MaxAvailableComponentSets")
        return await self._refuse(call, error, context)

    async def _refuse(self, call: str, error: Exception, context: Context) -> bytes:
        status, _ = _status(error)
        message = str(error)
        if status is grpc.StatusCode.INTERNAL and not isinstance(error, MalformedMessage):
            log.error("request failed", call=call, exc_info=error, **_asked_by(context))
            message = f"{type(error).__name__}: see the estimator's log"
        log.debug("request refused", call=call, reason=message, peer=context.peer(), **_asked_by(context))
        return await _abort(context, status, message)


def _status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status of a refusal, and its label in metrics."""
    match error:
        case MalformedMessage():
            return grpc.StatusCode.INTERNAL, "malformed"
        case TooManyWatchers() | TooManyQuestions():
            return grpc.StatusCode.RESOURCE_EXHAUSTED, ""
        case MessageTooLarge():
            return grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large"
        case ClusterNotSynced():
            return grpc.StatusCode.UNAVAILABLE, "not_synced"
        case WrongCluster():
            return grpc.StatusCode.UNKNOWN, "wrong_cluster"
        case Invalid():
            return grpc.StatusCode.UNKNOWN, "invalid"
        case RequestRefused() | UnsupportedKind() | StatusError():
            return grpc.StatusCode.UNKNOWN, ""
        case KubeError():
            return grpc.StatusCode.UNAVAILABLE, ""
    return grpc.StatusCode.INTERNAL, ""


def _asked_by(context: Context) -> dict[str, str]:
    """The caller's metadata: the object of the question, and its decision."""
    names = {"object": "object", HEADER: KEY}
    return {
        names[name]: "".join(character for character in value[:_NOTE_MAX] if character.isprintable())
        for name, value in context.invocation_metadata() or ()
        if name in names and isinstance(value, str)
    }


def _caller(context: Context) -> str:
    """The caller's identity: its certificate, which many connections may share; else its connection."""
    identities = getattr(context, "peer_identities", lambda: None)()
    return repr(sorted(identities)) if identities else context.peer()


async def _abort(context: Context, status: grpc.StatusCode, message: str) -> bytes:
    printable = "".join(character if character.isprintable() else " " for character in message[:_DETAILS_MAX])
    await context.abort(status, printable)


def _handler(service: str, methods: Mapping[str, Callable[[bytes, Context], Any]]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        service, {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    )
