"""The declaration of a controller: its name, where it runs, and how it is built.

The same declaration runs in a process, in a test and in the embedded fleet. A `Runnable` is one term of a
controller: a new leader, or a restart, builds a new one.
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
    CONTROL_PLANE = "control plane"  # one, next to Karmada
    EACH_CLUSTER = "each cluster"
    MANY = "many"  # one process for many clusters


class Runnable(Protocol):
    @property
    def informers(self) -> Sequence[InformerSet]:
        """Return all informers, by cluster. The manager calls this after `prepare` and runs them."""

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Set up what must exist before the watches start: a namespace, a kind, a listener.

        The manager closes the stack when the term ends. Raises KubeError, Invalid or OSError on failure.
        """

    async def run(self, stop: Stop) -> None:
        """Run after everything was listed once. When `stop` is set, finish the current work and return."""


async def _here(work: Callable[[], T]) -> T:
    return work()


@dataclass(frozen=True)
class Environment:
    """The environment of a Runnable. `check` raises LeadershipLost unless acting is safe at this instant."""

    clients: Mapping[str, Client]
    events: EventRecorder
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    check: Callable[[], None] = lambda: None
    status: ManagerStatus = field(default_factory=ManagerStatus)
    off_loop: Callable[[Callable[[], Any]], Awaitable[Any]] = _here  # runs long computations

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
    """The settings of a process. Its lease and its events are in the first cluster.

    Without a lease, the controller writes nothing or is the only writer. `max_staleness_seconds` 0 disables
    the check.
    """

    clusters: Sequence[ClusterConfig]
    listen: Sequence[tuple[str, int]] = ()  # probes and metrics
    lease: LeaseName | None = None
    qps: float | None = 50.0
    burst: int = 100
    timeout: float | None = None  # per request, in seconds
    max_staleness_seconds: float = WatchOptions().max_staleness_seconds


@dataclass(frozen=True)
class Controller(Generic[OptionsT]):
    """A controller.

    `component` is its name for API servers and events; `metrics_prefix` is for `_leading`.
    """

    name: str
    place: Place
    component: Callable[[OptionsT], str]
    manages: Callable[[OptionsT], ManagerOptions]  # raises InvalidOptions, ConfigError or Invalid
    build: Callable[..., Awaitable[Runnable]]  # takes Environment, options, and the parts of `given`
    # Runs before the lease is taken, and may raise.
    before_lease: Callable[[Client, OptionsT], Awaitable[None]] | None = None
    metrics_prefix: str = ""

    def given(self, **parts: Any) -> "Controller[OptionsT]":
        """Return a copy with parts that options do not name, such as a market or a callback."""
        return replace(self, build=partial(self.build, **parts))
