"""Feature gates: `Name=true,Other=false`, with Karmada's names and defaults.

Most of them belong to other components and are only accepted here, because the
same list is often given to all of them. An unknown name is an error.
"""

from collections.abc import Mapping
from types import MappingProxyType

from karpool.model.errors import Invalid

RESOURCE_QUOTA = "ResourceQuotaEstimate"
OVERCOMMIT_PROTECTION = "SchedulingOvercommitProtection"
ALL_ALPHA, ALL_BETA = "AllAlpha", "AllBeta"

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
KNOWN = frozenset((*_ALPHA, *_BETA, ALL_ALPHA, ALL_BETA))
Gates = Mapping[str, bool]


def parse(text: str) -> Gates:
    """Every gate with its value; raises Invalid. A group switch decides for those not named."""
    named: dict[str, bool] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = entry.partition("=")
        if name not in KNOWN:
            raise Invalid("--feature-gates", name, f"is not a gate; known are {', '.join(sorted(KNOWN))}")
        if not equals or value.lower() not in ("true", "false"):
            raise Invalid("--feature-gates", entry, "must be Name=true or Name=false")
        named[name] = value.lower() == "true"
    gates = dict.fromkeys(_ALPHA, named.get(ALL_ALPHA, False))
    gates |= dict.fromkeys(_BETA, named.get(ALL_BETA, True))
    return MappingProxyType(gates | named)


DEFAULTS = parse("")
