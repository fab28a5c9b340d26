"""Feature gates: `Name=true,Other=false`, with Karmada's names and defaults.

Most of them belong to other components and are only accepted here, because the
same list is often given to all of them. An unknown name is an error.
"""

from karpool.kube import feature_gates
from karpool.kube.feature_gates import Gates

RESOURCE_QUOTA = "ResourceQuotaEstimate"
OVERCOMMIT_PROTECTION = "SchedulingOvercommitProtection"

_ALPHA = (
    "LoggingAlphaOptions",
    "MultiplePodTemplatesScheduling",
    OVERCOMMIT_PROTECTION,
    "PriorityBasedScheduling",
    RESOURCE_QUOTA,
    "StatefulFailoverInjection",
    "FederatedQuotaEnforcement",
    "MultiClusterService",
    "WorkloadAffinity",
)
_BETA = (
    "ContextualLogging",
    "ControllerPriorityQueue",
    "CustomizedClusterResourceModeling",
    "Failover",
    "GracefulEviction",
    "LoggingBetaOptions",
    "PropagateDeps",
    "PropagationPolicyPreemption",
)


def parse(text: str) -> Gates:
    """Every gate with its value; raises Invalid. A group switch decides for those not named."""
    return feature_gates.parse(text, alpha=_ALPHA, beta=_BETA)


DEFAULTS = parse("")
