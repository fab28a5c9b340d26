"""Informers for everything that somebody wants to be told of: one for all who read a kind in the same way."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.api.reader import PAGE_SIZE
from karpool.kube.errors import Denied, NotFound
from karpool.kube.watch.informer import Informer
from karpool.kube.watched import WatchedKind


@dataclass(frozen=True, slots=True)
class SharedInformer:
    informer: Informer[Any]
    optional: bool

    @property
    def ready(self) -> bool:
        """Whether every object was told once; an optional kind may also not exist, or be closed to us."""
        return self.informer.synced.is_set() or self._is_away

    @property
    def _is_away(self) -> bool:
        return self.optional and isinstance(self.informer.last_error, NotFound | Denied)

    def staleness(self) -> float:
        """A kind that does not exist, or is closed to us, has nothing to tell; one that was there has."""
        return 0.0 if self._is_away else self.informer.staleness()


def followers(
    client: Client, wanted: Iterable[WatchedKind[Any]], *, page_size: int = PAGE_SIZE
) -> list[SharedInformer]:
    """Sinks of one kind are told in the order given. Objects are not kept."""
    grouped: dict[Any, list[WatchedKind[Any]]] = {}
    for each in wanted:
        grouped.setdefault((each.resource, each.into, each.selection), []).append(each)
    found = []
    for (resource, into, selection), watched in grouped.items():
        optional = all(watched_kind.optional for watched_kind in watched)
        informer: Informer[Any] = Informer(
            client,
            resource,
            into=into,
            selection=selection,
            keep=False,
            page_size=page_size,
            optional=optional,
        )
        for kind in watched:
            informer.add_sink(kind.sink)
        found.append(SharedInformer(informer, optional))
    return found


class InformerSet:
    """All of them together."""

    def __init__(self, client: Client, wanted: Iterable[WatchedKind[Any]]) -> None:
        self._name = client.name
        self._followers = followers(client, wanted)

    @property
    def informers(self) -> Iterator[Informer[Any]]:
        return (follower.informer for follower in self._followers)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in self._followers:
                group.create_task(follower.informer.run(), name=f"{self._name} {follower.informer.resource}")

    def not_ready(self) -> str | None:
        for follower in self._followers:
            if not follower.ready:
                why = f": {follower.informer.last_error}" if follower.informer.last_error else ""
                return f"cluster {self._name}: {follower.informer.resource} were not listed yet{why}"
        return None

    def staleness(self) -> float:
        """Seconds since the API server was last heard of, for the kind that has waited longest."""
        return max((follower.staleness() for follower in self._followers), default=0.0)
