"""What an administrator may choose about decisions. The defaults are Karmada's, except where noted."""

from dataclasses import dataclass, field
from enum import StrEnum

from karpool.scheduler.cycle.installed_plugins import InstalledPlugin
from karpool.scheduler.cycle.plugins import FILTERS, SCORES


class EstimateMergeRule(StrEnum):
    """How the answers for one cluster become one number."""

    MIN = "min"  # upstream
    PREFER_ACCURATE = "prefer-accurate"
    ACCURATE_IF_HIGHER = "accurate-if-higher"


# Replicas that pools without limits count for where replicas on new nodes are shared out by weight: about
# what a pool of usual limits holds, so that such a cluster neither takes all nor nothing. Its room stays.
UNLIMITED_WEIGHT = 100


class CostPreference(StrEnum):
    OFF = "off"
    TIE_BREAK = "tie-break"  # the cheaper of two that are equal otherwise
    WEIGHT = "weight"  # cheaper clusters take more


class RoomOrder(StrEnum):
    """Which room replicas are given first, where estimators tell existing nodes from those to be bought."""

    EXISTING_FIRST = "existing-first"  # what is there, and then what could be bought
    BY_TOTAL = "by-total"  # upstream: both count alike
    BY_PRICE = "by-price"  # what is there, and then the cheapest


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    plugins: frozenset[str] = field(default=frozenset((*FILTERS, *SCORES)))
    others: tuple[InstalledPlugin, ...] = ()  # of other packages
    multiple_pod_templates: bool = False  # gate MultiplePodTemplatesScheduling
    workload_affinity: bool = False  # gate WorkloadAffinity
    resource_models: bool = True  # gate CustomizedClusterResourceModeling
    propagate_empty: bool = False  # --enable-empty-workload-propagation
    # Not upstream's `min`: it clips what an autoscaler could still add to what exists.
    merge: EstimateMergeRule = EstimateMergeRule.ACCURATE_IF_HIGHER
    partial: bool = False  # place what fits instead of all or nothing
    cost: CostPreference = CostPreference.OFF
    # Not upstream's `by-total`: a pool that may grow would draw all replicas past machines that stand idle.
    room_order: RoomOrder = RoomOrder.EXISTING_FIRST
    unlimited_weight: int = UNLIMITED_WEIGHT
    spare_tainted: bool = False  # no further replicas for a target with a taint that is not tolerated
