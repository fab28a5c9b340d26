"""One member cluster: what is watched of it, and the questions it can be asked.

Until every node and every pod has been counted once, `not_ready` says why there is
no answer yet: a cluster that is half counted looks emptier than it is. One that has
not been heard of for too long is `stale`.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import LIVE_PODS
from karpool.estimator.owners import BETWEEN, OwnedObject, OwnerReader, OwnerStore, ResourceDiscovery
from karpool.estimator.plugins import registry
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.interface import watches_of
from karpool.estimator.plugins.registry import PluginSet, PluginSettings
from karpool.estimator.pods import PodsByOwner, UnschedulablePods, outstanding
from karpool.estimator.question import EstimateQuestion
from karpool.estimator.serving.options import EstimatorOptions
from karpool.estimator.serving.unschedulable import NANOSECONDS, UnschedulableReader
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.manager.feature_gates import OVERCOMMIT_PROTECTION, Gates, estimator_gates
from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.pod import Pod
from karpool.wire.requests import EstimateRequest, WorkloadReference

if TYPE_CHECKING:
    from karpool.estimator.serving.metrics import EstimatorMetrics

# 50,000 pods within the burst that the Go binary allows itself. Larger pages only take more memory.
PAGE_SIZE = 2000


@dataclass(frozen=True)
class MemberSettings:
    gates: Gates = field(default_factory=estimator_gates)
    max_staleness_seconds: float = 0.0  # 0: never mind
    unschedulable_kinds: Collection[str] = ()


class MemberEstimator:
    def __init__(
        self,
        name: str,
        client: Client,
        plugins: PluginSet,
        framework: Framework,
        settings: MemberSettings | None = None,
    ) -> None:
        self.name = name
        self.framework = framework
        self.cluster = Cluster(Aspect.ROOM)
        self.waiting = UnschedulablePods()
        self._settings = settings or MemberSettings()
        self._owners = OwnerStore()
        self._bound: PodsByOwner | None = None
        kinds = ResourceDiscovery(client)
        self._unschedulable = UnschedulableReader(
            client,
            kinds.find,
            OwnerReader(client, kinds, self._owners),
            self._settings.unschedulable_kinds,
        )
        self.informers = InformerSet(client, self._kinds(plugins, client.clock), page_size=PAGE_SIZE)

    # Running

    @property
    def synced(self) -> bool:
        return self.informers.not_ready() is None

    def not_ready(self) -> str | None:
        """What has not been counted yet, or None."""
        return self.informers.not_ready()

    @property
    def stale(self) -> bool:
        """Whether the cluster has not been heard of for so long that its state means nothing."""
        limit = self._settings.max_staleness_seconds
        return bool(limit) and self.staleness() > limit

    def staleness(self) -> float:
        """Seconds since the API server was last heard of, for the kind that has waited longest."""
        return self.informers.staleness()

    # Asking

    def question(self, request: EstimateRequest, *, topology: bool = False) -> EstimateQuestion:
        if self._bound is None:  # overcommit protection is off
            return EstimateQuestion(request, self.cluster.snapshot().room, topology=topology)
        arrived = tuple(map(self._bound.arrived, request.assumed))
        assumed = tuple(map(outstanding, request.assumed, arrived))
        return EstimateQuestion(request, self.cluster.snapshot().room, assumed, topology, arrived)

    async def unschedulable(self, reference: WorkloadReference, threshold_ns: int, now: float) -> int:
        """A threshold below zero counts as zero. Raises KubeError or Unsupported."""
        seconds = max(threshold_ns, 0) / NANOSECONDS
        waiting = self.waiting.of(reference.namespace)
        overdue = [pod for pod in waiting if pod.is_overdue(now, seconds)]
        return await self._unschedulable.count(reference, overdue)

    # Inside

    def _kinds(self, plugins: PluginSet, clock: Clock) -> list[WatchedKind[Any]]:
        wanted: list[WatchedKind[Any]] = [
            *cluster_watches(self.cluster, clock),
            WatchedKind(PODS, Pod, self.waiting, LIVE_PODS),
        ]
        if self._settings.gates[OVERCOMMIT_PROTECTION]:
            # After the cluster, which then knows what each pod asks for.
            self._bound = PodsByOwner(self.cluster.room.shape_of, self._owners.get)
            wanted.append(WatchedKind(PODS, Pod, self._bound, LIVE_PODS))
            wanted += (
                WatchedKind(resource, OwnedObject, self._owners, optional=True) for resource in BETWEEN
            )
        for plugin in plugins:
            wanted += watches_of(plugin)
        # A role that was written for the Go estimator opens few of these.
        return [replace(kind, refines=kind.optional) for kind in wanted]


def plugin_names(options: EstimatorOptions) -> list[str]:
    plugins = options.plugins
    return registry.chosen(plugins, options.node_capacity_providers, registry.known(plugins))


def build_member(
    name: str, client: Client, options: EstimatorOptions, metrics: "EstimatorMetrics", clock: Clock
) -> MemberEstimator:
    """One cluster with its own plugins. Raises Invalid for a plugin that cannot be made."""
    settings = PluginSettings(
        cluster=name,
        gates=options.gates,
        clock=clock,
        providers=options.node_capacity_providers,
        autoscaler_model=options.autoscaler_model,
        region=options.region,
        catalogue=Path(options.catalogue) if options.catalogue else None,
        potential_nodes_max=options.max_potential_nodes,
        quota_scopes=options.quota_scopes,
        failure_threshold_seconds=options.failure_threshold_seconds,
        recovery_interval_seconds=options.recovery_interval_seconds,
    )
    plugins = registry.build(plugin_names(options), settings)
    framework = Framework(
        plugins.ours,
        plugins.others,
        timeout_seconds=options.plugin_timeout_seconds,
        observe=metrics.plugin,
    )
    rules = MemberSettings(options.gates, options.max_staleness_seconds, options.unschedulable_kinds)
    member = MemberEstimator(name, client, plugins, framework, rules)
    metrics.follow(member)
    return member
