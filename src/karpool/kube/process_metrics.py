"""What every process says of itself in its metrics: which version runs, and what it uses."""

import platform
from collections.abc import Callable
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from karpool import __version__

_described: WeakSet[CollectorRegistry] = WeakSet()


def describe_process(registry: CollectorRegistry) -> None:
    """Version, memory, open files, garbage collection; once. Call before making other metrics."""
    if registry in _described:
        return
    _described.add(registry)
    disable_created_metrics()  # type: ignore[no-untyped-call] # the library leaves it untyped
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    labels = {
        "git_version": f"karpool-{__version__}",
        "git_commit": "unknown",
        "git_short_commit": "unknown",
        "git_tree_state": "unknown",
        "build_date": "unknown",
        "go_version": "none",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }
    text = "Karmada build metadata exposed as labels with a constant value of 1."
    Gauge("karmada_build_info", text, tuple(labels), registry=registry).labels(**labels).set(1)
    ours = Gauge("karpool_build_info", "The version that runs.", ("version",), registry=registry)
    ours.labels(__version__).set(1)


def follow_leadership(registry: CollectorRegistry, prefix: str, leads: Callable[[], bool]) -> None:
    """Over all replicas the sum must be 1: none is an outage, two would be a fault."""
    gauge = Gauge(f"{prefix}_leading", "Whether this process leads.", registry=registry)
    gauge.set_function(lambda: float(leads()))
