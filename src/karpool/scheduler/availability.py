"""How many more replicas each cluster takes for a binding, from everybody who can tell.

Estimators are asked, the clusters' summaries are counted, what is promised is taken off
both, and one rule makes one number of them, with its parts. An answer is as old as the
ledger was when it was asked (`Ledger.grown`). The binding's own promises are taken off as
well: what it asks for is room *beside* the replicas it has, and those in flight are
among them.

An estimator that was lost a moment ago is trusted a little longer: its last answer to
the same question stands for the hold-down, as long as nothing more was promised there.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from karpool.kube.clock import Clock
from karpool.model.karmada.binding import Binding, BindingKey
from karpool.model.karmada.cluster import MemberCluster
from karpool.scheduler import summary_estimate
from karpool.scheduler.components import places_sets
from karpool.scheduler.decision import Availability, Part
from karpool.scheduler.estimator_client import Reply
from karpool.scheduler.ledger import Freed, Ledger
from karpool.scheduler.merging import ACCURATE, GENERAL, merge
from karpool.scheduler.settings import Settings
from karpool.wire.asking import Asked, ask_component_sets, ask_replicas

_REMEMBERED = 20_000  # last answers
_ANYTHING = ask_replicas(None)


class Asker(Protocol):
    """Who asks the estimators: `EstimatorClients`, or a stand-in."""

    async def ask(
        self, cluster: MemberCluster, asked: Asked, promises: Sequence[bytes] = (), about: str = ""
    ) -> Reply: ...


class _Last(NamedTuple):
    value: int
    at: float
    grown: int


class _Question(NamedTuple):
    asked: Asked
    about: str  # for the server's log


def _question(binding: Binding, for_sets: bool) -> _Question:
    template = binding.template
    about = f"kind={template.kind}, name={template.namespace}/{template.name}"
    if for_sets:
        return _Question(ask_component_sets(binding.components, template.namespace), about)
    return _Question(ask_replicas(binding.requirements), about)


class Availabilities:
    """`asker` None: there are no estimators. `ledger` None: nothing is promised, nothing protected."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        ledger: Ledger | None = None,
        asker: Asker | None = None,
        hold_down_seconds: float = 60.0,
        on_freed: Callable[[Freed], None] = lambda _: None,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._ledger, self._asker = ledger, asker
        self._hold_down_seconds = hold_down_seconds
        self._on_freed = on_freed
        self._last: dict[tuple[str, bytes], _Last] = {}
        self._verifies: dict[str, bool] = {}
        self._lost: dict[str, float] = {}  # clusters whose estimators cannot be reached, since when

    async def gather(self, binding: Binding, clusters: Sequence[MemberCluster]) -> dict[str, Availability]:
        """By name, for every one of the clusters. Never raises."""
        for_sets = places_sets(binding, self._settings)
        if self._asker is None:
            return {each.name: self._merged(binding, each, for_sets) for each in clusters}
        question = _question(binding, for_sets)
        found = await asyncio.gather(*(self._ask(binding, each, question) for each in clusters))
        return {each.name: availability for each, availability in zip(clusters, found, strict=True)}

    def held(self) -> frozenset[str]:
        """Clusters whose estimators were lost within the hold-down: nothing should be moved off them yet."""
        now = self._clock.monotonic()
        return frozenset(name for name, since in self._lost.items() if now - since < self._hold_down_seconds)

    async def verify(self, clusters: Callable[[str], MemberCluster | None]) -> Freed:
        """Ask where something is promised what of it has arrived, and take that off the ledger."""
        if self._ledger is None or self._asker is None:
            return set()
        names = [name for name in self._ledger.clusters() if self._verifies.get(name, True)]
        found = [each for each in map(clusters, names) if each is not None]
        freed = await asyncio.gather(*(self._verify(each) for each in found))
        return set().union(*freed)

    def verifies(self, cluster: str) -> bool | None:
        """Whether its estimator says what has arrived; None before it was asked. A Go server does not."""
        return self._verifies.get(cluster)

    # Inside

    async def _ask(self, binding: Binding, cluster: MemberCluster, question: "_Question") -> Availability:
        grown = self._grown(cluster.name)
        reply = await self._replied(cluster, question.asked, question.about)
        part = self._heard(cluster.name, question.asked, reply, grown)
        return self._merged(binding, cluster, question.asked.for_sets, part)

    def _merged(self, binding: Binding, cluster: MemberCluster, for_sets: bool, *told: Part) -> Availability:
        parts = (self._by_summary(binding, cluster, for_sets), *told)
        return merge(parts, self._settings.merge, max(binding.replicas, 1))

    def _grown(self, cluster: str) -> int:
        return self._ledger.grown(cluster) if self._ledger is not None else 0

    def _by_summary(self, binding: Binding, cluster: MemberCluster, for_sets: bool) -> Part:
        models = self._settings.resource_models
        promised = self._ledger.charged(cluster.name) if self._ledger is not None else None
        assumed = promised or ()
        if for_sets:
            value = summary_estimate.sets(cluster.summary, binding.components, assumed, models=models)
        else:
            value = summary_estimate.replicas(cluster.summary, binding.requirements, assumed, models=models)
        if promised is None:
            return Part(GENERAL, value)
        return Part(GENERAL, value, f"after {promised.pods} promised")

    async def _replied(self, cluster: MemberCluster, asked: Asked, about: str = "") -> Reply:
        """The estimator's reply; what it says has arrived is in the ledger then."""
        assert self._asker is not None
        keys, promises = self._promises(cluster.name)
        reply = await self._asker.ask(cluster, asked, promises, about)
        if not keys or self._ledger is None:
            return reply
        if reply.value is not None:
            self._verifies[cluster.name] = len(reply.arrived) == len(keys)
        freed: Freed = set()
        if len(reply.arrived) == len(keys):
            now = self._clock.monotonic()
            for key, arrived in zip(keys, reply.arrived, strict=True):
                if arrived.bound:
                    freed |= self._ledger.report(cluster.name, key, arrived, now)
        if freed:
            self._on_freed(freed)
        count = sum(each.replicas for each in self._ledger.promises(cluster.name))
        note = reply.note or (f"after {count} promised" if count else "")
        return reply._replace(note=note)

    def _promises(self, cluster: str) -> tuple[list[BindingKey], list[bytes]]:
        """Whose they are, and encoded: all of them for a server that verifies, else those in flight."""
        if self._ledger is None:
            return [], []
        verifies = self._verifies.get(cluster, False)
        keys: list[BindingKey] = []
        encoded: list[bytes] = []
        for promise in self._ledger.promises(cluster):
            amounts = promise.promised if verifies else promise.in_flight
            if any(amounts):
                keys.append(promise.binding)
                encoded.append(promise.encoded(amounts))
        return keys, encoded

    def _heard(self, cluster: str, asked: Asked, reply: Reply, grown: int) -> Part:
        key, now = (cluster, asked.body), self._clock.monotonic()
        if reply.lost_since is None:
            self._lost.pop(cluster, None)
            if reply.value is not None:
                self._remember(key, _Last(reply.value, now, grown))
            return Part(ACCURATE, reply.value, reply.note)
        self._lost[cluster] = reply.lost_since
        last = self._last.get(key)
        if last is None or last.grown != grown or now - last.at >= self._hold_down_seconds:
            return Part(ACCURATE, None, reply.note)
        return Part(ACCURATE, last.value, f"{reply.note}; its answer of {now - last.at:.0f} s ago stands")

    def _remember(self, key: tuple[str, bytes], last: _Last) -> None:
        self._last.pop(key, None)
        self._last[key] = last
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]

    async def _verify(self, cluster: MemberCluster) -> Freed:
        assert self._ledger is not None
        before = {each.binding: each.replicas for each in self._ledger.promises(cluster.name)}
        await self._replied(cluster, _ANYTHING)
        after = {each.binding: each.replicas for each in self._ledger.promises(cluster.name)}
        return {cluster.name} if any(after.get(key, 0) < was for key, was in before.items()) else set()
