"""One member cluster: its watches, and the questions it can answer.

Until every node and pod is listed, `not_ready` says why there is no answer yet: a partially listed cluster
looks emptier than it is. A cluster without news for too long is `stale`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karpool.cluster.aspects import NO_ASPECTS, Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.snapshot import REGION_MISSING
from karpool.estimator.pending_demand import served_by_expected
from karpool.estimator.plugins import registry
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.interface import watches_of
from karpool.estimator.plugins.registry import PluginSettings
from karpool.estimator.promised_demand import wanting
from karpool.estimator.question import EstimateQuestion
from karpool.estimator.serving.options import EstimatorOptions
from karpool.estimator.serving.owner_reader import OwnerReader, ResourceDiscovery
from karpool.estimator.serving.room_watch import RoomWatch
from karpool.estimator.serving.unschedulable import NANOSECONDS, UnschedulableReader
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.manager.feature_gates import OVERCOMMIT_PROTECTION
from karpool.model.contracts.shared_contract import SharedContract
from karpool.provisioning.device_shapes import device_shapes_of
from karpool.rooms.arrived import arrived, outstanding
from karpool.wire.requests import EstimateRequest, WorkloadReference

if TYPE_CHECKING:
    from karpool.estimator.serving.metrics import EstimatorMetrics

# 50,000 pods within the Go binary's default burst. Larger pages only take more memory.
PAGE_SIZE = 2000
MEMBER_ASPECTS = Aspect.ROOM | Aspect.WAITING
_NEEDED = Aspect.ROOM | Aspect.WAITING | Aspect.QUOTAS


@dataclass(frozen=True)
class MemberSettings:
    max_staleness_seconds: float = 0.0  # 0: no limit
    unschedulable_kinds: Collection[str] = ()


class MemberEstimator:
    def __init__(
        self,
        name: str,
        client: Client,
        cluster: Cluster,
        framework: Framework,
        settings: MemberSettings | None = None,
    ) -> None:
        """`cluster` has the aspects of the framework's plugins and `MEMBER_ASPECTS`."""
        self.name = name
        self.framework = framework
        self.cluster = cluster
        self._clock = client.clock
        self._settings = settings or MemberSettings()
        kinds = ResourceDiscovery(client)
        self._unschedulable = UnschedulableReader(
            client,
            kinds.find,
            OwnerReader(client, kinds, cluster.owners),
            self._settings.unschedulable_kinds,
        )
        self.rooms = RoomWatch(cluster, client.clock)
        self.informers = InformerSet(client, self._kinds(), page_size=PAGE_SIZE)

    # Running

    @property
    def synced(self) -> bool:
        return self.informers.not_ready() is None

    def not_ready(self) -> str | None:
        """What is not synced yet, or None."""
        return self.informers.not_ready()

    @property
    def stale(self) -> bool:
        """Whether the API server has been silent for so long that the state is not usable."""
        limit = self._settings.max_staleness_seconds
        return bool(limit) and self.staleness() > limit

    def staleness(self) -> float:
        """Seconds since the last message of the API server, for the most outdated kind."""
        return self.informers.staleness()

    @property
    def nodes(self) -> int:
        return self.cluster.room.node_count

    def region_is_missing(self) -> bool:
        return Aspect.POOLS in self.cluster.aspects and self.cluster.snapshot().region_is_missing

    def remarks(self) -> Iterator[str]:
        """Why answers are less exact than possible; empty until the cluster is synced."""
        if self.not_ready():
            return
        if self.region_is_missing():
            yield f"cluster {self.name}: {REGION_MISSING}"
        for unseen in self.informers.unseen():
            yield f"cluster {self.name}: answers are given without {unseen}"

    # Questions

    def question(self, request: EstimateRequest, *, topology: bool = False) -> EstimateQuestion:
        snapshot = self.cluster.snapshot(self._clock.now())
        if Aspect.OWNERS not in self.cluster.aspects:  # overcommit protection is off
            return EstimateQuestion(request, snapshot, topology=topology)
        on_nodes = tuple(arrived(self.cluster.replicas_of, workload) for workload in request.assumed)
        assumed = tuple(map(outstanding, request.assumed, on_nodes))
        # Providers serve pending pods first.
        waiting = [wanting(self.cluster.wanting_of, workload) for workload in assumed if snapshot.waiting]
        return EstimateQuestion(request, snapshot, assumed, topology, on_nodes, waiting)

    def unschedulable_pods(self) -> int:
        """The number of pods that the scheduler found no node for."""
        return sum(pod.since is not None for pod in self.cluster.snapshot().waiting.values())

    async def unschedulable(self, reference: WorkloadReference, threshold_ns: int, now: float) -> int:
        """A threshold below zero counts as zero. Raises KubeError or Unsupported."""
        seconds = max(threshold_ns, 0) / NANOSECONDS
        snapshot = self.cluster.snapshot(now)
        overdue = [
            pod
            for pod in snapshot.waiting.values()
            if pod.key.namespace == reference.namespace and pod.is_overdue(now, seconds)
        ]
        if overdue and Aspect.NODECLAIMS in self.cluster.aspects:
            coming = served_by_expected(snapshot, now)
            overdue = [pod for pod in overdue if pod.key not in coming]
        return await self._unschedulable.count(reference, overdue)

    # Internals

    def _kinds(self) -> list[WatchedKind[Any]]:
        # A role written for the Go estimator grants few of these: the answer is then less exact, and says so.
        # Nodes, pods and quotas are required.
        refining = self.cluster.aspects & ~_NEEDED
        plugins = self.framework.plugins
        watched = [watch for plugin in plugins for watch in watches_of(plugin)]
        return [
            *cluster_watches(self.cluster, self._clock, refining=refining),
            *(replace(kind, refines=kind.optional) for kind in watched),
        ]


def plugin_names(options: EstimatorOptions) -> list[str]:
    plugins = options.plugins
    return registry.chosen(plugins, options.node_capacity_providers, registry.known(plugins))


def build_member(
    name: str,
    client: Client,
    options: EstimatorOptions,
    metrics: "EstimatorMetrics",
    clock: Clock,
    *,
    contract: SharedContract | None = None,
) -> MemberEstimator:
    """One cluster with its own plugins; `contract` is shared by all clusters of the process. Raises Invalid
    for a plugin that cannot be created.
    """
    settings = PluginSettings(
        cluster=name,
        gates=options.gates,
        clock=clock,
        providers=options.node_capacity_providers,
        autoscaler_model=options.autoscaler_model,
        region=options.region,
        catalogue=Path(options.catalogue) if options.catalogue else None,
        contract=contract.member(name) if contract is not None else None,
        device_shapes=device_shapes_of(Path(options.device_shapes) if options.device_shapes else None),
        potential_nodes_max=options.max_potential_nodes,
        quota_scopes=options.quota_scopes,
        failure_threshold_seconds=options.failure_threshold_seconds,
        recovery_interval_seconds=options.recovery_interval_seconds,
    )
    plugins = registry.build(plugin_names(options), settings)
    owners = Aspect.OWNERS if options.gates[OVERCOMMIT_PROTECTION] else NO_ASPECTS
    cluster = settings.cluster_of(plugins, MEMBER_ASPECTS | owners)
    framework = Framework(
        plugins.ours,
        plugins.others,
        timeout_seconds=options.plugin_timeout_seconds,
        observe=metrics.plugin,
    )
    rules = MemberSettings(options.max_staleness_seconds, options.unschedulable_kinds)
    member = MemberEstimator(name, client, cluster, framework, rules)
    metrics.follow(member)
    return member
