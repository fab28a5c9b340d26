"""Follows capacity that only estimators see and no summary shows.

While bindings wait, one long call is open to every estimator of ours, and answered when there may be more
capacity. Other estimators have no such call: they are polled with waiting bindings, which are retried when
the answer grows. Without waiting bindings nothing is asked.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from karpool.kube.clock import Clock
from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.scheduler.controller.wake_ups import may_go_to
from karpool.scheduler.estimates.estimate_cache import RoomNews, RoomSilence

PAUSE_SECONDS = 1.0  # between two answers of one estimator, whose capacity may change all the time
POLL_SECONDS = 30.0  # interval for estimators of other vendors; Karmada retries after 5 minutes
POLLED_BINDINGS = 4  # waiting bindings per poll
RETRY_SECONDS = 10.0  # after an estimator could not be reached


class RoomReader(Protocol):
    """The part of `AvailabilityReader` that is used here."""

    async def estimated(self, binding: Binding, cluster: MemberCluster) -> int | None: ...


class RoomFollower:
    """`waiting` are the bindings without capacity; `room_in` retries those that may fit a cluster."""

    def __init__(
        self,
        news: RoomNews,
        reader: RoomReader,
        clock: Clock,
        *,
        clusters: Callable[[], Sequence[MemberCluster]],
        waiting: Callable[[], Sequence[Binding]],
        room_in: Callable[[Iterable[str]], None],
    ) -> None:
        self._news, self._reader, self._clock = news, reader, clock
        self._clusters, self._waiting, self._room_in = clusters, waiting, room_in
        self._seen: dict[str, int] = {}  # generations, by cluster
        self._polled: dict[tuple[str, str], int] = {}  # answers of other estimators, by cluster and binding
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Start following new clusters; stop for removed ones, or for all if nothing waits."""
        clusters = {cluster.name: cluster for cluster in self._clusters()} if self._waiting() else {}
        for name in [name for name, task in self._tasks.items() if name not in clusters or task.done()]:
            self._tasks.pop(name).cancel()
        for name, cluster in clusters.items():
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._follow(cluster), name=f"room in {name}")

    async def close(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, cluster: MemberCluster) -> None:
        name = cluster.name
        while True:
            answer = await self._news.await_room(cluster, self._seen.get(name, 0))
            if answer is RoomSilence.NOT_OURS:
                await self._clock.sleep(POLL_SECONDS)
                await self._poll(cluster)
            elif isinstance(answer, RoomSilence):
                await self._clock.sleep(RETRY_SECONDS)
            else:
                if answer != self._seen.get(name):
                    self._seen[name] = answer
                    self._room_in((name,))
                await self._clock.sleep(PAUSE_SECONDS)

    async def _poll(self, cluster: MemberCluster) -> None:
        """Whether a waiting binding may find more capacity there than at the last poll."""
        bindings = [binding for binding in self._waiting() if may_go_to(binding, cluster)][:POLLED_BINDINGS]
        polled: dict[tuple[str, str], int] = {}
        grew = False
        for binding in bindings:
            key = cluster.name, str(binding.key)
            amount = await self._reader.estimated(binding, cluster)
            if amount is not None:
                grew = grew or amount > self._polled.get(key, 0)
                polled[key] = amount
        others = {key: amount for key, amount in self._polled.items() if key[0] != cluster.name}
        self._polled = others | polled
        if grew:
            self._room_in((cluster.name,))
