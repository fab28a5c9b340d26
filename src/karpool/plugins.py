"""What plugins of other packages are made of. Since 0.1.

Promise: names in this module keep their meaning within a minor version. One that is to go is kept for a
minor version more and warns; nothing that is not named here is promised. An installed package offers a
plugin with an entry point; `--plugins` of the process enables it by the name of that entry point.

===========================  ==========================================================================
Entry point group            What the entry makes
===========================  ==========================================================================
karpool.estimator.plugins    from `PluginSettings` an `EstimatorPlugin`: a source adds room, a limit caps it
karpool.scheduler.plugins    a `SchedulerPlugin`: refuses clusters for a binding, or prefers some
===========================  ==========================================================================

Autoscaler providers (`CapacityProvider`) are part of a source: `NodeAutoscalerEstimator(providers)` is one
that adds the room of all of them to that of existing nodes. A catalogue source writes a `Catalogue` file,
which every command and controller takes with `--catalogue`; `read_catalogue` says whether it is right.
"""

from typing import Protocol, runtime_checkable

from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import ObjectChange
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.plugins.interface import (
    EXISTING_NODES,
    UNLIMITED,
    CapacityPart,
    Estimate,
    EstimateCode,
    EstimatesComponents,
    EstimatesReplicas,
    EstimatorPlugin,
    PluginRole,
    no_opinion,
)
from karpool.estimator.plugins.node_autoscaler import CapacityProvider, NodeAutoscalerEstimator, ProvidesSets
from karpool.estimator.plugins.registry import PluginSettings
from karpool.estimator.question import EstimateQuestion
from karpool.kube.watched import WatchedKind
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.catalogue.files import read_catalogue
from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.kubernetes.api_resources import NAMESPACES, ApiResource
from karpool.model.kubernetes.meta import WireObject

__all__ = [
    "EXISTING_NODES",
    "NAMESPACES",
    "UNLIMITED",
    "ApiResource",
    "Aspect",
    "Binding",
    "CapacityPart",
    "CapacityProvider",
    "Catalogue",
    "Estimate",
    "EstimateCode",
    "EstimateQuestion",
    "EstimatesComponents",
    "EstimatesReplicas",
    "EstimatorPlugin",
    "FiltersClusters",
    "InstanceType",
    "MemberCluster",
    "NodeAutoscalerEstimator",
    "ObjectChange",
    "Offering",
    "PluginRole",
    "PluginSettings",
    "ProvidesSets",
    "SchedulerPlugin",
    "ScoresClusters",
    "Snapshot",
    "WatchedKind",
    "WireObject",
    "no_opinion",
    "read_catalogue",
]


class SchedulerPlugin(Protocol):
    """A plugin of the scheduler has a name, and one or both of `filter` and `score`. Since 0.1.

    It is asked for every candidate of every decision, so it must not wait.
    """

    @property
    def name(self) -> str: ...


@runtime_checkable
class FiltersClusters(Protocol):
    """Since 0.1."""

    def filter(self, binding: Binding, cluster: MemberCluster, /) -> str | None:
        """The reason to refuse a cluster, or nothing. One that raises refuses it."""


@runtime_checkable
class ScoresClusters(Protocol):
    """Since 0.1."""

    def score(self, binding: Binding, cluster: MemberCluster, /) -> int:
        """How much a cluster is preferred, from 0 to 100. One that raises prefers nothing."""
