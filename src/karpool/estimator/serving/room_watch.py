"""Tells waiting callers when a cluster may hold more than before, although no node shows it.

Karmada's summary shows nodes and their pods. Only an estimator sees limits, pools, stock, prices, quotas and
groups. They are checked when one of them changes and when a failure expires, and only while callers wait; the
next caller is told of changes in between.
"""

import asyncio
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ClusterKind
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.snapshot import Snapshot
from karpool.kube.clock import Clock
from karpool.kube.first_done import first_done
from karpool.model.karpenter.objects import CompiledPool

HOLD_SECONDS = 30.0  # maximum wait for an answer, so that callers that left are noticed
GATHER_SECONDS = 0.2  # changes come in bursts; bindings are retried within 2 s of the last of them


class TooManyWatchers(Exception):
    """Too many callers wait for capacity; a caller may try again."""


class RoomSigns(NamedTuple):
    """The inputs that decide how much could be added to existing nodes."""

    pools: Mapping[str, CompiledPool]
    used: Mapping[str, Mapping[str, int]]  # used part of limits, by pool
    failing: frozenset[Hashable]  # pools and offerings that do not count, or for one node only
    quotas: Mapping[tuple[str, str, str], int]  # remaining amounts, by namespace, quota and resource
    others: tuple[object, ...]  # any change may mean more capacity


def signs_of(snapshot: Snapshot, failures: LaunchFailures, now: float) -> RoomSigns:
    facts, aspects = snapshot.facts, snapshot.facts.aspects
    failing: set[Hashable] = {
        (failure.pool, failure.offer or failure.cause) for failure in failures.current(now)
    }
    failing.update(failures.probed_pools(now))
    failing.update(failures.probed_offers(now))
    quotas = {
        (namespace, quota.name, resource): units
        for namespace, of_namespace in facts.quotas.items()
        for quota in of_namespace
        for resource, units in quota.free.items()
    }
    groups = facts.node_groups
    return RoomSigns(
        facts.pools if Aspect.POOLS in aspects else {},
        facts.usage if Aspect.NODECLAIMS in aspects else {},
        frozenset(failing),
        quotas,
        (facts.market.version, facts.daemons.shapes, groups.groups, groups.described),
    )


def may_hold_more(before: RoomSigns, after: RoomSigns) -> bool:
    """Whether the cluster may hold more; if unsure, it may, because a check in vain costs little."""
    if before.pools != after.pools or before.others != after.others or before.failing - after.failing:
        return True
    for pool, used in before.used.items():
        now_used = after.used.get(pool, {})
        if any(now_used.get(resource, 0) < units for resource, units in used.items()):
            return True
    if before.quotas.keys() - after.quotas.keys():
        return True
    return any(units > before.quotas.get(entry, units) for entry, units in after.quotas.items())


class RoomWatch:
    """`generation` changes whenever there may be more capacity, and after a restart."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self.generation = max(1, int(clock.now() * 1000))
        self._signs: RoomSigns | None = None
        self._waiting: dict[asyncio.Event, None] = {}  # in order, so that runs are reproducible
        cluster.listeners.append(self._heard)

    def _heard(self, kind: ClusterKind) -> None:
        if kind is not kinds.PODS:
            for news in self._waiting:
                news.set()

    async def beyond(self, seen: int) -> int:
        """The generation, as soon as it differs from `seen`, or after the timeout."""
        news, ends_at = asyncio.Event(), self._clock.monotonic() + HOLD_SECONDS
        self._waiting[news] = None
        try:
            while True:
                news.clear()
                self._look()
                left = ends_at - self._clock.monotonic()
                if self.generation != seen or left <= 0:
                    return self.generation
                await self._until(news, min(left, self._forgiven_in()))
        finally:
            del self._waiting[news]

    def _look(self) -> None:
        now = self._clock.now()
        signs = signs_of(self._cluster.snapshot(now), self._cluster.failures, now)
        if self._signs is not None and may_hold_more(self._signs, signs):
            self.generation += 1
        self._signs = signs

    def _forgiven_in(self) -> float:
        """Seconds until the next failure expires."""
        now = self._clock.now()
        due = [failure.until - now for failure in self._cluster.failures.current(now)]
        return max(GATHER_SECONDS, min(due, default=HOLD_SECONDS))

    async def _until(self, news: asyncio.Event, seconds: float) -> None:
        async with first_done(self._clock.sleep(seconds), news.wait()):
            pass
        if news.is_set():
            await self._clock.sleep(GATHER_SECONDS)
