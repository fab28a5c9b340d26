"""The scheduler's feature gates: Karmada's names; those of other components are only accepted.

Overcommit protection is on here, and off in karmada-scheduler, where it is alpha: it
is what this scheduler is for.
"""

from karpool.kube import feature_gates
from karpool.kube.feature_gates import Gates

PRIORITY = "PriorityBasedScheduling"
MODELING = "CustomizedClusterResourceModeling"
MULTIPLE_TEMPLATES = "MultiplePodTemplatesScheduling"
WORKLOAD_AFFINITY = "WorkloadAffinity"
OVERCOMMIT_PROTECTION = "SchedulingOvercommitProtection"

_ALPHA = (
    "FederatedQuotaEnforcement",
    "LoggingAlphaOptions",
    "MultiClusterService",
    MULTIPLE_TEMPLATES,
    "ResourceQuotaEstimate",
    "StatefulFailoverInjection",
    WORKLOAD_AFFINITY,
)
_BETA = (
    "ContextualLogging",
    "ControllerPriorityQueue",
    MODELING,
    "Failover",
    "GracefulEviction",
    "LoggingBetaOptions",
    OVERCOMMIT_PROTECTION,
    PRIORITY,
    "PropagateDeps",
    "PropagationPolicyPreemption",
)


def parse(text: str) -> Gates:
    """Every gate with its value; raises Invalid."""
    return feature_gates.parse(text, alpha=_ALPHA, beta=_BETA)


DEFAULTS = parse("")
