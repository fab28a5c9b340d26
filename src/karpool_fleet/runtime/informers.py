"""The shared informers of one cluster, and one component's use of them."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from karpool.cluster.changes import ChangeSink, ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.watch.informer import Informer
from karpool.model.karpenter.objects import NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODEPOOLS, NODES, PODS, ApiResource, ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod

T = TypeVar("T")

# One type for each kind, so that its events are decoded once; other kinds are read as dicts.
STRUCTS: dict[ApiResource, type[Any]] = {PODS: Pod, NODES: Node, NODEPOOLS: NodePool, NODECLAIMS: NodeClaim}


class SharedInformers:
    """The informers of one cluster, by kind; started on first use."""

    def __init__(self, client: Client, start: Callable[[Informer[Any]], None]) -> None:
        self._client = client
        self._start = start
        self._known: dict[ApiResource, Informer[Any]] = {}

    def of(self, resource: ApiResource) -> Informer[Any]:
        if resource not in self._known:
            self._known[resource] = informer = Informer(
                self._client, resource, into=STRUCTS.get(resource, dict)
            )
            self._start(informer)
        return self._known[resource]


class Informers:
    """One component's use of the shared informers: its handlers end with it."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._used: list[Informer[Any]] = []
        self._gate = _Gate()

    def of(self, resource: ApiResource, into: type[T] = dict) -> "Feed[T]":  # type: ignore[assignment]
        """Return the feed of a kind, typed as in `STRUCTS`; `into` is for the type checker and must agree."""
        assert into is STRUCTS.get(resource, dict), (resource, into)
        informer = self._shared.of(resource)
        self._used.append(informer)
        return Feed(informer, self._gate)

    async def synced(self) -> None:
        """Wait until every requested kind has been listed once."""
        for informer in self._used:
            await informer.synced.wait()

    def close(self) -> None:
        self._gate.is_open = False


class _Gate:
    is_open = True


class Feed(Generic[T]):
    """A shared informer as one component sees it."""

    def __init__(self, informer: Informer[T], gate: _Gate) -> None:
        self._informer = informer
        self._gate = gate
        self.get = informer.get
        self.objects = informer.objects

    def __len__(self) -> int:
        return len(self._informer)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._informer

    def add_sink(self, sink: ChangeSink[T]) -> None:
        self._informer.add_sink(_Gated(sink, self._gate))

    def on_change(self, handler: Callable[[ObjectChange[T]], None]) -> None:
        """Call `handler` for every known object and for every change from now on."""
        self.add_sink(EachChange(handler))


class _Gated(Generic[T]):
    def __init__(self, sink: ChangeSink[T], gate: _Gate) -> None:
        self._sink = sink
        self._gate = gate
        self.takes_unreadable = getattr(sink, "takes_unreadable", False)

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        if self._gate.is_open:
            self._sink.apply(changes)


class EachChange(Generic[T]):
    """A sink that passes changes on one by one."""

    def __init__(self, handler: Callable[[ObjectChange[T]], None]) -> None:
        self._handler = handler

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        for change in changes:
            self._handler(change)
