"""The registry of plugins, and the selection of those that run.

Our plugins are listed here; others come from installed packages through the entry point group
`karpool.estimator.plugins`, and are only loaded if they are enabled. An unknown name is refused: an estimator
without plugins promises everything.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from typing import Any

from karpool.cluster.aspects import NO_ASPECTS, Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.market import Market
from karpool.estimator.plugins import node_autoscaler, node_resource, resource_quota
from karpool.estimator.plugins.interface import EstimatorPlugin, aspects_of
from karpool.estimator.plugins.node_autoscaler import CapacityProvider, NodeAutoscalerEstimator
from karpool.estimator.plugins.node_resource import NodeResourceEstimator
from karpool.estimator.plugins.resource_quota import ResourceQuotaEstimator
from karpool.estimator.providers import cluster_autoscaler, karpenter, karpenter_limits
from karpool.kube.clock import Clock, RealClock
from karpool.manager.feature_gates import RESOURCE_QUOTA, Gates, estimator_gates
from karpool.manager.plugins import chosen_plugins, installed, known_plugins, loaded
from karpool.model.contracts.contracted_prices import ContractedPrices
from karpool.model.errors import Invalid
from karpool.model.kubernetes.resource_quota import Matching
from karpool.provisioning.device_shapes import DeviceShapes
from karpool.provisioning.market_file import market_of

ENTRY_POINTS = "karpool.estimator.plugins"
LIMITS = "limits"
PACKING = "packing"


@dataclass(frozen=True)
class PluginSettings:
    """The inputs of a plugin's constructor, one per cluster."""

    cluster: str = ""
    gates: Gates = field(default_factory=estimator_gates)
    clock: Clock = field(default_factory=RealClock)
    providers: Sequence[str] = ()
    autoscaler_model: str = PACKING
    catalogue: Path | None = None  # a file instead of the shipped catalogue
    contract: ContractedPrices | None = None
    device_shapes: DeviceShapes | None = None  # what drivers publish on new nodes, if a file says it
    region: str = ""  # of the catalogue, if the cluster's objects do not say it
    potential_nodes_max: int = karpenter.NODES_MAX  # per pool or node group
    quota_scopes: Matching = "any"
    failure_threshold_seconds: float = karpenter_limits.FAILURE_THRESHOLD_SECONDS
    recovery_interval_seconds: float = karpenter_limits.RECOVERY_INTERVAL_SECONDS

    @cached_property
    def pool_failures(self) -> LaunchFailures:
        """Failures of Karpenter's pools: the cluster records them, a provider reads them."""
        return self._failures()

    @cached_property
    def group_failures(self) -> LaunchFailures:
        """Failures of cluster-autoscaler's node groups."""
        return self._failures()

    def _failures(self) -> LaunchFailures:
        return LaunchFailures(
            threshold_seconds=self.failure_threshold_seconds, recovery_seconds=self.recovery_interval_seconds
        )

    def _market(self) -> Market:
        """One --region applies to all clusters; a region in the cluster's objects takes precedence."""
        if self.catalogue is not None:
            return market_of(self.catalogue, self.region, self.contract)
        return market_of(None, contract=self.contract, fallback_region=self.region)

    def cluster_of(self, plugins: Iterable[EstimatorPlugin], aspects: Aspect = NO_ASPECTS) -> Cluster:
        """A cluster with the aspects of the plugins and these. Raises Invalid for an unusable region or
        catalogue.
        """
        aspects = reduce(or_, map(aspects_of, plugins), aspects)
        buys = aspects & (Aspect.NODECLAIMS | Aspect.NODE_GROUPS)
        return Cluster(
            aspects,
            market=self._market() if buys else None,
            failures=self.pool_failures,
            group_failures=self.group_failures,
        )


Factory = Callable[[PluginSettings], EstimatorPlugin]
ProviderFactory = Callable[[PluginSettings], CapacityProvider]


def _karpenter_limits(settings: PluginSettings) -> CapacityProvider:
    return karpenter_limits.KarpenterLimitsProvider(
        settings.clock,
        failure_threshold_seconds=settings.failure_threshold_seconds,
        recovery_interval_seconds=settings.recovery_interval_seconds,
    )


def _karpenter(settings: PluginSettings) -> CapacityProvider:
    return karpenter.KarpenterProvider(
        settings.clock,
        settings.pool_failures,
        nodes_max=settings.potential_nodes_max,
        shapes=settings.device_shapes,
    )


def _cluster_autoscaler(settings: PluginSettings) -> CapacityProvider:
    return cluster_autoscaler.ClusterAutoscalerProvider(
        settings.clock,
        settings.group_failures,
        nodes_max=settings.potential_nodes_max,
        shapes=settings.device_shapes,
    )


# By provider and model. Node groups have sizes instead of limits, so there is only one model.
PROVIDERS: dict[tuple[str, str], ProviderFactory] = {
    (karpenter.NAME, LIMITS): _karpenter_limits,
    (karpenter.NAME, PACKING): _karpenter,
    (cluster_autoscaler.NAME, LIMITS): _cluster_autoscaler,
    (cluster_autoscaler.NAME, PACKING): _cluster_autoscaler,
}


def known_providers() -> list[str]:
    return sorted({name for name, _ in PROVIDERS})


def _node_autoscaler(settings: PluginSettings) -> EstimatorPlugin:
    return NodeAutoscalerEstimator(
        [provider(name, settings) for name in settings.providers or known_providers()]
    )


def provider(name: str, settings: PluginSettings) -> CapacityProvider:
    """Raises Invalid for a provider without such a model."""
    factory = PROVIDERS.get((name, settings.autoscaler_model))
    if factory is None:
        models = (
            ", ".join(sorted(model for provider_name, model in PROVIDERS if provider_name == name)) or "none"
        )
        raise Invalid("--autoscaler-model", settings.autoscaler_model, f"{name} has these models: {models}")
    return factory(settings)


IN_TREE: Mapping[str, Factory] = {
    node_resource.NAME: lambda settings: NodeResourceEstimator(),
    node_autoscaler.NAME: _node_autoscaler,
    resource_quota.NAME: lambda settings: ResourceQuotaEstimator(
        enabled=settings.gates[RESOURCE_QUOTA], matching=settings.quota_scopes
    ),
}
BY_DEFAULT = (node_resource.NAME, resource_quota.NAME)


def known(plugins: Sequence[str]) -> set[str]:
    """The names of all plugins."""
    return known_plugins(plugins, ENTRY_POINTS, IN_TREE)


def chosen(plugins: Sequence[str], providers: Sequence[str], names: Collection[str]) -> list[str]:
    """The names that a `--plugins` list enables; raises Invalid for an unknown one.

    `*` is every plugin, `-Name` removes one. Without a list, or with only names to remove, it is Karmada's
    default. Naming a capacity provider enables the plugin that uses it.
    """
    wanted, unwanted = chosen_plugins(plugins, names)
    enabled: list[str] = []
    for name in wanted or BY_DEFAULT:
        enabled += sorted(names) if name == "*" else [name]
    if providers:
        enabled.append(node_autoscaler.NAME)
    return [name for name in dict.fromkeys(enabled) if name not in unwanted]


@dataclass(frozen=True)
class PluginSet:
    ours: Sequence[EstimatorPlugin]
    others: Sequence[EstimatorPlugin] = ()

    def __iter__(self) -> Any:
        return iter((*self.ours, *self.others))


def build(names: Sequence[str], settings: PluginSettings) -> PluginSet:
    """Create the plugins of one cluster; raises Invalid naming the one that cannot be created."""
    ours, others = [], []
    foreign = installed(ENTRY_POINTS, IN_TREE) if any(name not in IN_TREE for name in names) else {}
    for name in names:
        if name in IN_TREE:
            ours.append(IN_TREE[name](settings))
        else:
            others.append(loaded(foreign[name], ("estimate", "estimate_components"), settings))
    return PluginSet(ours, others)
