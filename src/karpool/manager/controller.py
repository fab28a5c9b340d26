"""A controller, declared once: what it is called, where it runs, and how it is built.

The same declaration runs in a process, in a test and in the embedded fleet. A `Runnable` is one term of
it: a new leader, or a restart, is a new one.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.lease_timing import TIMING, LeaseTiming
from karpool.kube.watch.informer_set import InformerSet
from karpool.manager.options import WatchOptions
from karpool.manager.readiness import ManagerStatus
from karpool.manager.stop import Stop

T = TypeVar("T")
OptionsT = TypeVar("OptionsT")


class Place(StrEnum):
    CONTROL_PLANE = "control plane"  # one, beside Karmada
    EACH_CLUSTER = "each cluster"
    MANY = "many"  # one process for many clusters


class Runnable(Protocol):
    @property
    def informers(self) -> Sequence[InformerSet]:
        """Everything that is watched, by cluster. Asked for after `prepare`; the manager runs them."""

    async def prepare(self, stack: AsyncExitStack) -> None:
        """What must be there before anything is watched: a namespace, a kind, a listener. What enters the
        stack is left when the term ends. Raises KubeError, Invalid or OSError when it cannot be."""

    async def run(self, stop: Stop) -> None:
        """Everything was listed once. Return when asked to stop, with the work under way finished."""


async def _here(work: Callable[[], T]) -> T:
    return work()


@dataclass(frozen=True)
class Environment:
    """What a Runnable is given. `check` raises LeadershipLost unless acting is safe at this instant."""

    clients: Mapping[str, Client]
    events: EventRecorder
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    check: Callable[[], None] = lambda: None
    status: ManagerStatus = field(default_factory=ManagerStatus)
    off_loop: Callable[[Callable[[], Any]], Awaitable[Any]] = _here  # runs what takes long

    @property
    def client(self) -> Client:
        return next(iter(self.clients.values()))

    @property
    def clock(self) -> Clock:
        return self.client.clock


@dataclass(frozen=True)
class LeaseName:
    name: str
    namespace: str
    timing: LeaseTiming = TIMING


@dataclass(frozen=True)
class ManagerOptions:
    """What a process needs to know of its options. Lease and events are kept in the first cluster.

    Without a lease nothing is written, or nobody else does. `max_staleness_seconds` 0: never mind.
    """

    clusters: Sequence[ClusterConfig]
    listen: Sequence[tuple[str, int]] = ()  # probes and metrics
    lease: LeaseName | None = None
    qps: float | None = 50.0
    burst: int = 100
    timeout: float | None = None  # of a request, in seconds
    max_staleness_seconds: float = WatchOptions().max_staleness_seconds


@dataclass(frozen=True)
class Controller(Generic[OptionsT]):
    """`component` is how API servers and events call it; `metrics_prefix` is of its gauge of leadership."""

    name: str
    place: Place
    component: Callable[[OptionsT], str]
    manages: Callable[[OptionsT], ManagerOptions]  # raises InvalidOptions, ConfigError or Invalid
    build: Callable[..., Awaitable[Runnable]]  # from Environment, options, and what was `given`
    before_lease: Callable[[Client, OptionsT], Awaitable[None]] | None = None  # its namespace
    metrics_prefix: str = ""

    def given(self, **parts: Any) -> "Controller[OptionsT]":
        """With parts that options do not name: a market, who is asked, who is shown what would be done."""
        return replace(self, build=partial(self.build, **parts))
