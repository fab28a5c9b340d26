"""One number per cluster from the answers of several estimators.

The cluster's summary knows what exists. Where the estimator in the cluster reports
more, an autoscaler may add the rest, so by default the summary does not clip it
(`accurate-if-higher`); where it reports less, the minimum counts. Answers that do
not know are skipped, so one dead estimator leaves the others as they are.
"""

from collections.abc import Sequence

from karpool.scheduler.controller.settings import EstimateMergeRule
from karpool.scheduler.cycle.decision import ClusterAvailability, EstimatePart

GENERAL = "general-estimator"
ACCURATE = "scheduler-estimator"
UNKNOWN = "unknown"
MANY = 2**31 - 1


def merge(parts: Sequence[EstimatePart], rule: EstimateMergeRule, replicas: int) -> ClusterAvailability:
    """`replicas` is what counts when nobody knows, or nobody sees a limit: as many as are asked for."""
    known = {
        part.source: min(part.value, MANY) for part in parts if part.value is not None and part.value >= 0
    }
    chosen = _chosen(known, rule)
    if not chosen:
        return ClusterAvailability(replicas, UNKNOWN, tuple(parts))
    value, source = min((value, source) for source, value in chosen.items())
    return ClusterAvailability(replicas if value == MANY else value, source, tuple(parts))


def _chosen(known: dict[str, int], rule: EstimateMergeRule) -> dict[str, int]:
    """The answers of which the least counts."""
    accurate, general = known.get(ACCURATE), known.get(GENERAL)
    if accurate is None or rule is EstimateMergeRule.MIN:
        return known
    if rule is EstimateMergeRule.PREFER_ACCURATE:
        return {ACCURATE: accurate}
    if general is not None and accurate > general:
        return {source: value for source, value in known.items() if source != GENERAL}
    return known
