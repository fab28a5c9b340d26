"""Asks estimators, subtracts every promise exactly once, and caches the answers.

There are three kinds of servers. Ours reports which promised replicas have arrived, so it is told all
promises and subtracts what it does not see. A Go server with overcommit protection subtracts what it is told:
the replicas that are not known to be ready. A server without it ignores promises. That is detected, because
even a promise of a million replicas leaves its answer unchanged; then the promises are subtracted here, as
many as they could displace.

An estimator that became unreachable a moment ago is trusted a little longer: its last answer to the same
question is valid for the hold-down, as long as nothing more was promised there.

A recent answer is reused for the same question if everything that was promised there since is of the same
kind: each of those replicas takes exactly one of the places.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import structlog

from karpool.kube.clock import Clock
from karpool.kube.expiring import ExpiringMap
from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.karmada.replica_requirements import NO_SHAPE, Component
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.scheduler.cycle.decision import ACCURATE, MANY, EstimatePart
from karpool.scheduler.promises.ledger import Freed, PromiseGrowth, PromiseLedger
from karpool.scheduler.promises.promise import Amounts, Promise
from karpool.wire.client_protocol import EncodedQuestion, ask_component_sets, ask_replicas, encode_assumed
from karpool.wire.requests import (
    ArrivedReplicas,
    AssumedWorkload,
    ComponentSetsRequest,
    EstimateRequest,
    ReplicasRequest,
    RoomParts,
)

log = structlog.get_logger(__name__)

_REMEMBERED = 20_000  # number of last answers
_KNOWN_SECONDS = 600.0  # a server may be replaced by another kind
_KEPT_SECONDS = 1.0  # maximum age of a reused answer
_VERY_MANY = 1_000_000  # multiplied by any request this stays within 64 bits


class EstimatorReply(NamedTuple):
    """The answer of an estimator. Defined here and not beside the client, so that only callers load gRPC.

    `value` None: unknown, and `note` says why. `lost_since`: unreachable since then (monotonic).
    """

    value: int | None
    note: str = ""
    arrived: tuple[ArrivedReplicas, ...] = ()
    lost_since: float | None = None
    parts: RoomParts | None = None


class EstimatorApi(Protocol):
    """Asks the estimators: `EstimatorClient`, or a stand-in."""

    async def ask(
        self, cluster: MemberCluster, asked: EncodedQuestion, promises: Sequence[bytes] = (), about: str = ""
    ) -> EstimatorReply: ...


class RoomSilence(Enum):
    """Why an estimator does not report new capacity."""

    NOT_OURS = "it has no such method"
    UNREACHABLE = "it is not running, or not ready"


@runtime_checkable
class RoomNews(Protocol):
    """Receives reports of estimators that there may be more capacity."""

    async def await_room(self, cluster: MemberCluster, seen: int) -> int | RoomSilence: ...


class PromiseHandling(StrEnum):
    """How a server handles the promises that it is told."""

    VERIFIES = "verifies"  # subtracts what it does not see on nodes, and reports it
    DEDUCTS = "deducts"  # subtracts what it is told
    IGNORES = "ignores"


@dataclass(frozen=True)
class EstimatorQuestion:
    """`about` is for the server's log. Bytes are encoded on demand: most answers need none."""

    request: EstimateRequest
    about: str = ""

    @cached_property
    def asked(self) -> EncodedQuestion:
        request = self.request
        if isinstance(request, ComponentSetsRequest):
            return ask_component_sets(request.components, request.namespace)
        return ask_replicas(request.requirements)

    @property
    def for_sets(self) -> bool:
        return isinstance(self.request, ComponentSetsRequest)

    @cached_property
    def _parts(self) -> tuple[Component, ...]:
        request = self.request
        if isinstance(request, ComponentSetsRequest):
            return tuple(
                Component(component.name, _VERY_MANY, component.requirements)
                for component in request.components
            )
        return (Component("", _VERY_MANY, request.requirements),)

    @property
    def shapes(self) -> tuple[PodShape, ...]:
        return tuple(part.shape for part in self._parts)

    @property
    def flood(self) -> bytes:
        """A promise that no cluster has capacity for."""
        return encode_assumed(AssumedWorkload("", self._parts))


def question_of(binding: Binding, for_sets: bool) -> EstimatorQuestion:
    template = binding.template
    about = f"kind={template.kind}, name={template.namespace}/{template.name}"
    request: EstimateRequest
    if for_sets:
        request = ComponentSetsRequest("", tuple(binding.components), template.namespace, wants_parts=True)
    else:
        request = ReplicasRequest("", binding.requirements, wants_parts=True)
    return EstimatorQuestion(request, about)


_ANY_POD = EstimatorQuestion(ReplicasRequest(""))


def _is_of(growth: PromiseGrowth, shape: PodShape) -> bool:
    """Whether only replicas of this shape were promised."""
    if growth.workload is None or len(growth.workload.requirements) != 1:
        return False
    requirements = growth.workload.requirements[0]
    return (NO_SHAPE if requirements is None else requirements.shape) == shape


class _Last(NamedTuple):
    value: int
    at: float
    grown: int
    parts: RoomParts | None = None

    def less(self, replicas: int, growths: int) -> "_Last":
        """The answer after so many replicas were promised: they take existing nodes first."""
        parts = self.parts
        if parts is not None:
            parts = replace(parts, existing=max(0, parts.existing - replicas))
        value = self.value if self.value >= MANY else max(0, self.value - replicas)
        return _Last(value, self.at, self.grown + growths, parts)


_Promised = list[tuple[Promise, Amounts]]


class EstimateCache:
    def __init__(
        self,
        api: EstimatorApi,
        ledger: PromiseLedger | None,
        clock: Clock,
        *,
        hold_down_seconds: float,
        on_freed: Callable[[Freed], None],
    ) -> None:
        self._api, self._ledger, self._clock = api, ledger, clock
        self._hold_down_seconds = hold_down_seconds
        self._on_freed = on_freed
        self._last = ExpiringMap[tuple[str, bytes], _Last](clock, hold_down_seconds, _REMEMBERED)
        # Recent answers, less what was promised since.
        self._recent = ExpiringMap[tuple[str, bytes], _Last](clock, _KEPT_SECONDS, _REMEMBERED)
        self._kinds: dict[str, tuple[PromiseHandling, float]] = {}
        self._lost: dict[str, float] = {}  # since when

    async def part(
        self, cluster: MemberCluster, question: EstimatorQuestion, *, fresh: bool = False
    ) -> EstimatePart:
        """The estimator's part of an availability. Never raises. `fresh`: always ask."""
        grown = self._ledger.grown(cluster.name) if self._ledger is not None else 0
        kept = None if fresh else self._kept(cluster.name, question)
        if kept is not None:
            note = "its last answer, less what was promised since"
            return EstimatePart(ACCURATE, kept.value, note, is_kept=True, room=kept.parts)
        reply = await self._reply(cluster, question)
        key, now = (cluster.name, question.asked.body), self._clock.monotonic()
        if reply.lost_since is None:
            self._lost.pop(cluster.name, None)
            if reply.value is not None:
                for held in (self._last, self._recent):
                    held.put(key, _Last(reply.value, now, grown, reply.parts))
            return EstimatePart(ACCURATE, reply.value, reply.note, room=reply.parts)
        self._lost[cluster.name] = reply.lost_since
        last = self._last.get(key)
        if last is None or last.grown != grown:
            return EstimatePart(ACCURATE, None, reply.note)
        note = f"{reply.note}; its answer of {now - last.at:.0f} s ago is used"
        return EstimatePart(ACCURATE, last.value, note, room=last.parts)

    async def verify(self, clusters: Callable[[str], MemberCluster | None]) -> Freed:
        """Ask clusters with promises what has arrived, and subtract it from the ledger."""
        if self._ledger is None:
            return set()
        names = [
            cluster
            for cluster in self._ledger.clusters()
            if self.kind(cluster) in (None, PromiseHandling.VERIFIES)
        ]
        members = [member for member in map(clusters, names) if member is not None]
        answers = await asyncio.gather(*(self._ask_with_promises(member, _ANY_POD) for member in members))
        return set().union(*(freed for _, _, freed in answers))

    def held(self) -> frozenset[str]:
        now = self._clock.monotonic()
        return frozenset(name for name, since in self._lost.items() if now - since < self._hold_down_seconds)

    def kind(self, cluster: str) -> PromiseHandling | None:
        """How the server handles promises; None if unknown or outdated."""
        kind, at = self._kinds.get(cluster, (None, 0.0))
        return kind if self._clock.monotonic() - at < _KNOWN_SECONDS else None

    # Internals

    def _kept(self, cluster: str, question: EstimatorQuestion) -> _Last | None:
        """The current answer derived from a recent one; None if that is not possible."""
        key = (cluster, question.asked.body)
        last = self._recent.get(key)
        if last is None or self._ledger is None or cluster in self._lost or question.for_sets:
            return None
        since = self._ledger.grown_since(cluster, last.grown)
        if since is None or not all(_is_of(growth, question.shapes[0]) for growth in since):
            return None
        if since:  # so that no growth is processed twice
            last = last.less(sum(sum(growth.amounts) for growth in since), len(since))
            self._recent.amend(key, last)
        return last

    async def _reply(self, cluster: MemberCluster, question: EstimatorQuestion) -> EstimatorReply:
        """The answer less promises, subtracted by the server or here."""
        reply, promised, _ = await self._ask_with_promises(cluster, question)
        if not promised or not reply.value:
            return reply
        count = sum(sum(amounts) for _, amounts in promised)
        if reply.arrived:
            count = sum(promise.replicas for promise, _ in promised)
        elif await self._ignores(cluster, question, reply.value):
            remaining = max(0, reply.value - displaced(promised, question.shapes))
            return reply._replace(
                value=remaining, note=f"{reply.value} less {count} promised, which it ignores"
            )
        return reply._replace(note=f"after {count} promised" if count else "")

    async def _ask_with_promises(
        self, cluster: MemberCluster, question: EstimatorQuestion
    ) -> tuple[EstimatorReply, _Promised, Freed]:
        """Ask with the promises, and record what has arrived."""
        promised = self._promises(cluster.name)
        encoded = [promise.encoded(amounts) for promise, amounts in promised]
        reply = await self._api.ask(cluster, question.asked, encoded, question.about)
        if not promised or self._ledger is None or len(reply.arrived) != len(promised):
            if promised and reply.value is not None and self.kind(cluster.name) is PromiseHandling.VERIFIES:
                del self._kinds[cluster.name]  # it no longer verifies
            return reply._replace(arrived=()), promised, set()
        self._learn(cluster.name, PromiseHandling.VERIFIES)
        freed: Freed = set()
        now = self._clock.monotonic()
        for (promise, _), arrived in zip(promised, reply.arrived, strict=True):
            if arrived.bound:
                freed |= self._ledger.report(cluster.name, promise.binding, arrived, now)
        if freed:
            self._on_freed(freed)
        return reply, promised, freed

    def _promises(self, cluster: str) -> _Promised:
        """All promises for a server that verifies, otherwise those in flight."""
        if self._ledger is None:
            return []
        verifies = self.kind(cluster) is PromiseHandling.VERIFIES
        promised = (
            (promise, promise.promised if verifies else promise.in_flight)
            for promise in self._ledger.promises(cluster)
        )
        return [(promise, amounts) for promise, amounts in promised if any(amounts)]

    async def _ignores(self, cluster: MemberCluster, question: EstimatorQuestion, answer: int) -> bool:
        """Whether a flood of promises leaves the answer unchanged. If unknown, it counts as unchanged."""
        kind = self.kind(cluster.name)
        if kind is None or kind is PromiseHandling.VERIFIES:
            flooded = await self._api.ask(cluster, question.asked, [question.flood], question.about)
            deducts = flooded.value is not None and flooded.value < answer
            kind = PromiseHandling.DEDUCTS if deducts else PromiseHandling.IGNORES
            if flooded.value is not None:
                self._learn(cluster.name, kind)
        return kind is PromiseHandling.IGNORES

    def _learn(self, cluster: str, kind: PromiseHandling) -> None:
        if kind is PromiseHandling.IGNORES and self.kind(cluster) is None:
            log.warning("estimator ignores promises; the scheduler deducts them", cluster=cluster)
        self._kinds[cluster] = (kind, self._clock.monotonic())


def displaced(promised: Iterable[tuple[Promise, Amounts]], asked: Sequence[PodShape]) -> int:
    """An upper bound on the replicas that promises displace, without knowing any node.

    For servers that do not subtract promises themselves. One promised pod on a node costs that node at most
    as many replicas as the largest ratio of both requests, rounded up, and at least its slot; so the bound
    holds for any nodes, and is exact for replicas of the same kind. `asked` is one shape, or the several of a
    set: a set needs every one of its pods.
    """
    displaced_by_one: dict[PodShape, int] = {}
    total = 0
    for promise, amounts in promised:
        for requirements, replicas in zip(promise.workload.requirements, amounts, strict=True):
            shape = NO_SHAPE if requirements is None else requirements.shape
            if shape not in displaced_by_one:
                displaced_by_one[shape] = sum(_displaced_by_one(shape, pod_shape) for pod_shape in asked)
            total += replicas * displaced_by_one[shape]
    return total


def _displaced_by_one(promised: PodShape, asked: PodShape) -> int:
    takes = dict(promised.requests)
    ratios = (-(-takes.get(name, 0) // units) for name, units in asked.requests if units > 0)
    return max(1, max(ratios, default=1))
