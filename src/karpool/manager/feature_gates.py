"""Feature gates: `Name=true,Other=false`, with Karmada's names.

Alpha gates are off by default, beta gates on. `AllAlpha` and `AllBeta` set all gates of their stage that are
not named. Most gates belong to other components and are only accepted here, because the same list is often
passed to all of them. An unknown name is an error: a misspelled gate must not look as if it were set.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from karpool.model.errors import Invalid

FLAG = "--feature-gates"
ALL_ALPHA, ALL_BETA = "AllAlpha", "AllBeta"
RESOURCE_QUOTA = "ResourceQuotaEstimate"
OVERCOMMIT_PROTECTION = "SchedulingOvercommitProtection"
PRIORITY = "PriorityBasedScheduling"
MODELING = "CustomizedClusterResourceModeling"
MULTIPLE_TEMPLATES = "MultiplePodTemplatesScheduling"
WORKLOAD_AFFINITY = "WorkloadAffinity"
Gates = Mapping[str, bool]

_ALPHA = frozenset(
    (
        "FederatedQuotaEnforcement",
        "LoggingAlphaOptions",
        "MultiClusterService",
        MULTIPLE_TEMPLATES,
        OVERCOMMIT_PROTECTION,
        PRIORITY,
        RESOURCE_QUOTA,
        "StatefulFailoverInjection",
        WORKLOAD_AFFINITY,
    )
)
_BETA = frozenset(
    (
        "ContextualLogging",
        "ControllerPriorityQueue",
        MODELING,
        "Failover",
        "GracefulEviction",
        "LoggingBetaOptions",
        "PropagateDeps",
        "PropagationPolicyPreemption",
    )
)
# On here and off in karmada-scheduler, where they are alpha: they are the purpose of our scheduler.
_PROMOTED = frozenset((OVERCOMMIT_PROTECTION, PRIORITY))


def estimator_gates(text: str = "") -> Gates:
    """Return every gate with its value. Raises Invalid."""
    return _parse(text, _ALPHA, _BETA)


def scheduler_gates(text: str = "") -> Gates:
    """Return every gate with its value. Raises Invalid."""
    return _parse(text, _ALPHA - _PROMOTED, _BETA | _PROMOTED)


def _parse(text: str, alpha: Collection[str], beta: Collection[str]) -> Gates:
    names = {*alpha, *beta, ALL_ALPHA, ALL_BETA}
    chosen: dict[str, bool] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = entry.partition("=")
        if name not in names:
            raise Invalid(FLAG, name, f"is not a gate; known are {', '.join(sorted(names))}")
        if not equals or value.lower() not in ("true", "false"):
            raise Invalid(FLAG, entry, "must be Name=true or Name=false")
        chosen[name] = value.lower() == "true"
    gates = dict.fromkeys(alpha, chosen.get(ALL_ALPHA, False))
    gates |= dict.fromkeys(beta, chosen.get(ALL_BETA, True))
    return MappingProxyType(gates | chosen)
