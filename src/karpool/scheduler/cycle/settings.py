"""Settings of decisions. The defaults are Karmada's, except where noted."""

from dataclasses import dataclass, field
from enum import StrEnum

from karpool.scheduler.cycle.installed_plugins import InstalledPlugin
from karpool.scheduler.cycle.plugins import FILTERS, SCORES


class EstimateMergeRule(StrEnum):
    """How the answers for one cluster are merged into one number."""

    MIN = "min"  # upstream
    PREFER_ACCURATE = "prefer-accurate"
    ACCURATE_IF_HIGHER = "accurate-if-higher"


# Replicas that pools without limits count for when replicas on new nodes are divided by weight: about what a
# pool of usual limits holds, so that such a cluster takes neither all nor nothing. Its capacity is unchanged.
UNLIMITED_WEIGHT = 100


class CostPreference(StrEnum):
    OFF = "off"
    TIE_BREAK = "tie-break"  # the cheaper of two otherwise equal ones
    WEIGHT = "weight"  # cheaper clusters take more


class RoomOrder(StrEnum):
    """Which capacity is used first, if estimators distinguish existing nodes from new ones."""

    EXISTING_FIRST = "existing-first"  # existing nodes, then new ones
    BY_TOTAL = "by-total"  # Karmada: both count alike
    BY_PRICE = "by-price"  # existing nodes, then the cheapest new ones


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    plugins: frozenset[str] = field(default=frozenset((*FILTERS, *SCORES)))
    others: tuple[InstalledPlugin, ...] = ()  # of other packages
    multiple_pod_templates: bool = False  # gate MultiplePodTemplatesScheduling
    workload_affinity: bool = False  # gate WorkloadAffinity
    resource_models: bool = True  # gate CustomizedClusterResourceModeling
    propagate_empty: bool = False  # --enable-empty-workload-propagation
    # Not Karmada's `min`: it limits what an autoscaler could add to what exists.
    merge: EstimateMergeRule = EstimateMergeRule.ACCURATE_IF_HIGHER
    partial: bool = False  # place what fits instead of all or nothing
    cost: CostPreference = CostPreference.OFF
    # Not Karmada's `by-total`: a pool that may grow would attract all replicas past idle machines.
    room_order: RoomOrder = RoomOrder.EXISTING_FIRST
    unlimited_weight: int = UNLIMITED_WEIGHT
    spare_tainted: bool = False  # no further replicas for a target with an untolerated taint
