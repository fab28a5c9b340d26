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


class CostPreference(StrEnum):
    OFF = "off"
    TIE_BREAK = "tie-break"  # the cheaper of two that are equal otherwise
    WEIGHT = "weight"  # cheaper clusters take more


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
    spare_tainted: bool = False  # no further replicas for a target with a taint that is not tolerated
