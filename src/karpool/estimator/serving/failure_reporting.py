"""Reports pools and offerings that do not count as metrics and events.

Metrics are computed on scrape. Events are written when a failure begins or ends, about the NodePool or the
status of cluster-autoscaler; an estimator without permission to write events works without them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from karpool.cluster.market.failures import LaunchFailure
from karpool.cluster.pools import node_group_status
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.providers import karpenter
from karpool.kube.event_recorder import EventRecorder, EventType, ObjectReference
from karpool.model.kubernetes.api_resources import NODEPOOLS

FAILED = "CapacityNotCounted"
RECOVERED = "CapacityCountedAgain"


@runtime_checkable
class ReportsLaunchFailures(Protocol):
    """A provider that reports failures."""

    @property
    def name(self) -> str: ...

    @property
    def on_failures(self) -> list[Callable[[Sequence[LaunchFailure], Sequence[LaunchFailure]], None]]: ...

    def failing(self) -> list[LaunchFailure]: ...


def reporting(plugins: Iterable[object]) -> list[ReportsLaunchFailures]:
    """The providers of these plugins that report failures."""
    asked = [plugin for plugin in plugins if isinstance(plugin, NodeAutoscalerEstimator)]
    return [
        provider
        for plugin in asked
        for provider in plugin.providers
        if isinstance(provider, ReportsLaunchFailures)
    ]


class FailureGauges(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._followed: list[tuple[str, ReportsLaunchFailures]] = []
        registry.register(self)

    def follow(self, cluster: str, providers: Iterable[ReportsLaunchFailures]) -> None:
        self._followed += ((cluster, provider) for provider in providers)

    def forget(self, cluster: str) -> None:
        self._followed = [(name, provider) for name, provider in self._followed if name != cluster]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        pools = GaugeMetricFamily(
            "karpool_estimator_failed_pools",
            "Pools and node groups that do not count at the moment, by cause.",
            labels=("cluster", "provider", "pool", "cause"),
        )
        offers = GaugeMetricFamily(
            "karpool_estimator_failed_offerings",
            "Offerings that do not count at the moment.",
            labels=("cluster", "provider"),
        )
        for cluster, provider in self._followed:
            failing = provider.failing()
            for launch_failure in failing:
                if launch_failure.offer is None:
                    pools.add_metric(
                        (cluster, provider.name, launch_failure.pool, launch_failure.cause.value), 1.0
                    )
            out = sum(failure.offer is not None for failure in failing)
            offers.add_metric((cluster, provider.name), float(out))
        yield pools
        yield offers


def report_failures(provider: ReportsLaunchFailures, recorder: EventRecorder) -> None:
    """Report on the objects what begins and ends from now on."""

    def tell(begun: Sequence[LaunchFailure], ended: Sequence[LaunchFailure]) -> None:
        for type_, reason, failures in (("Warning", FAILED, begun), ("Normal", RECOVERED, ended)):
            for about, message in _messages(provider.name, failures):
                recorder.record(about, _type(type_), reason, message)

    provider.on_failures.append(tell)


def _type(text: str) -> EventType:
    return "Warning" if text == "Warning" else "Normal"


def _messages(provider: str, failures: Sequence[LaunchFailure]) -> Iterator[tuple[ObjectReference, str]]:
    """One message for each pool, and one for all its offerings together."""
    offers: dict[str, list[LaunchFailure]] = {}
    for failure in failures:
        if failure.offer is None:
            yield _about(provider, failure.pool), f"{failure.pool}: {failure}"
        else:
            offers.setdefault(failure.pool, []).append(failure)
    for pool, some in offers.items():
        shown = ", ".join(str(launch_failure.offer) for launch_failure in some[:3])
        more = f" and {len(some) - 3} more" if len(some) > 3 else ""
        yield _about(provider, pool), f"offerings {shown}{more}: {some[0].message}"


def _about(provider: str, pool: str) -> ObjectReference:
    if provider == karpenter.NAME:
        return ObjectReference(NODEPOOLS.api_version, NODEPOOLS.kind, "", pool)
    return ObjectReference("v1", "ConfigMap", node_group_status.NAMESPACE, node_group_status.NAME)
