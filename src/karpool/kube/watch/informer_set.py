"""Shared informers: one informer for all consumers that read a kind in the same way."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.api.reader import PAGE_SIZE
from karpool.kube.errors import Denied, NotFound
from karpool.kube.watch.informer import Informer
from karpool.kube.watched import WatchedKind
from karpool.model.kubernetes.api_resources import ObjectKey


class KindState(Enum):
    LISTING = "listing"  # not listed yet, without an error
    SYNCED = "synced"
    ABSENT = "absent"  # the server does not serve the kind, so there are no objects
    DENIED = "denied"  # the kind is served and we may not list it
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class SharedInformer:
    informer: Informer[Any]
    optional: bool
    refines: bool = False

    @property
    def state(self) -> KindState:
        error = self.informer.last_error
        if error is None:
            return KindState.SYNCED if self.informer.synced.is_set() else KindState.LISTING
        if isinstance(error, NotFound) and not len(self.informer):
            # A kind that disappears while it has objects is not believed: all of them would count as deleted.
            return KindState.ABSENT
        return KindState.DENIED if isinstance(error, Denied) else KindState.FAILING

    @property
    def ready(self) -> bool:
        """Whether every object was delivered once, the kind is absent, or the kind is not needed."""
        return self.informer.synced.is_set() or self._is_absent or self.unseen

    @property
    def _is_absent(self) -> bool:
        return self.optional and self.state is KindState.ABSENT

    @property
    def unseen(self) -> bool:
        """Whether answers are given without the kind, although it may have objects."""
        return self.refines and self.state is KindState.DENIED and not self.informer.synced.is_set()

    def staleness(self) -> float:
        """Return the staleness in seconds; 0 for a kind that is absent, or forbidden and not needed.

        A kind that was listed becomes stale, whatever the reason.
        """
        return 0.0 if self._is_absent or self.unseen else self.informer.staleness()


def followers(
    client: Client, kinds: Iterable[WatchedKind[Any]], *, page_size: int = PAGE_SIZE
) -> list[SharedInformer]:
    """Return one informer for each kind.

    Sinks of a kind are called in the order given. Objects are not kept.
    """
    grouped: dict[Any, list[WatchedKind[Any]]] = {}
    for kind in kinds:
        grouped.setdefault((kind.resource, kind.into, kind.selection), []).append(kind)
    informers = []
    for (resource, into, selection), watched in grouped.items():
        optional = all(watched_kind.optional for watched_kind in watched)
        refines = all(watched_kind.refines for watched_kind in watched)
        informer: Informer[Any] = Informer(
            client,
            resource,
            into=into,
            selection=selection,
            keep=False,
            page_size=page_size,
            optional=optional,
            look_out_seconds=min(
                (kind.look_out_seconds for kind in watched if kind.look_out_seconds is not None), default=None
            ),
        )
        for kind in watched:
            informer.add_sink(kind.sink)
        informers.append(SharedInformer(informer, optional, refines))
    return informers


class InformerSet:
    """The informers of one cluster."""

    def __init__(
        self, client: Client, kinds: Iterable[WatchedKind[Any]], *, page_size: int = PAGE_SIZE
    ) -> None:
        self.clock = client.clock
        self._name = client.name
        self._was_ready = False
        self._followers = followers(client, kinds, page_size=page_size)

    @property
    def informers(self) -> Iterator[Informer[Any]]:
        return (follower.informer for follower in self._followers)

    async def run(self) -> None:
        """Run all informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in self._followers:
                group.create_task(follower.informer.run(), name=f"{self._name} {follower.informer.resource}")

    def not_ready(self) -> str | None:
        """Return what was not listed yet. Errors after the first list show as `staleness`."""
        if self._was_ready:
            return None
        for follower in self._followers:
            if not follower.ready:
                why = f": {follower.informer.last_error}" if follower.informer.last_error else ""
                return f"cluster {self._name}: {follower.informer.resource} were not listed yet{why}"
        self._was_ready = True
        return None

    def troubled(self) -> list[str]:
        """Return kinds that were listed and fail now, or that answers are given without, with the reason."""
        return [
            f"cluster {self._name}: {follower.informer.resource}: {follower.state.value}"
            f" for {follower.informer.staleness():.0f}s: {follower.informer.last_error}"
            for follower in self._followers
            if follower.ready and follower.state in (KindState.DENIED, KindState.FAILING)
        ]

    def unseen(self) -> list[str]:
        """Return kinds that answers are given without, with the reason."""
        return [
            f"{follower.informer.resource}: {follower.informer.last_error}"
            for follower in self._followers
            if follower.unseen
        ]

    def unreadable(self) -> dict[str, int]:
        """Return, by kind, the number of objects that cannot be decoded or that a sink cannot read."""
        keys: dict[str, set[ObjectKey]] = {}  # several informers may watch one kind
        misunderstood: Counter[str] = Counter()
        for informer in self.informers:
            kind = informer.resource.kind
            keys.setdefault(kind, set()).update(informer.unreadable)  # kinds with 0 are reported, too
            for sink in informer.sinks:
                if hasattr(sink, "unreadable"):
                    misunderstood[kind] = max(misunderstood[kind], sink.unreadable())
        return {kind: max(len(undecoded), misunderstood[kind]) for kind, undecoded in keys.items()}

    @property
    def failing(self) -> bool:
        """Whether the last attempt to list some kind failed before its first list."""
        return any(
            follower.informer.last_error is not None for follower in self._followers if not follower.ready
        )

    def staleness(self) -> float:
        """Seconds since the last message of the API server, for the stalest kind."""
        return max((follower.staleness() for follower in self._followers), default=0.0)
