"""The limits-only arithmetic of karmada#7376: the rest of each NodePool's limits, divided.

Kept for comparisons with that change (`--autoscaler-model=limits`). It knows nothing of machines, so it
promises replicas that no instance type could hold, and a pool without limits counts for nothing. All amounts
are in thousandths, exactly.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from karpool.cluster.aspects import Aspect
from karpool.cluster.nodes.node_facts import ClaimFacts
from karpool.estimator.plugins.interface import UNLIMITED, CapacityPart, Estimate, no_opinion
from karpool.estimator.question import EstimateQuestion
from karpool.kube.clock import Clock
from karpool.model import quantity
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NodePool
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.resources import CPU

FAILURE_THRESHOLD_SECONDS = 180.0
RECOVERY_INTERVAL_SECONDS = 600.0


@dataclass
class PoolFailureTracker:
    """Since when a pool has pending pods but no claims, and since when it counts as failed."""

    zero_claims_since: dict[str, float] = field(default_factory=dict)
    failed_since: dict[str, float] = field(default_factory=dict)

    def counts(
        self, pool: str, *, has_claims: bool, pending: bool, now: float, threshold: float, recovery: float
    ) -> bool:
        """Whether a pool counts now; updates the tracked times."""
        if has_claims:
            self._forget(pool)
        failed = self.failed_since.get(pool)
        if failed is not None:
            if now - failed < recovery:
                return False
            self._forget(pool)
        if has_claims:
            return True
        if not pending:
            self.zero_claims_since.pop(pool, None)
            return True
        since = self.zero_claims_since.setdefault(pool, now)
        if now - since > threshold:
            self.failed_since[pool] = now
            return False
        return True

    def _forget(self, pool: str) -> None:
        self.failed_since.pop(pool, None)
        self.zero_claims_since.pop(pool, None)


def used_by_pool(claims: Iterable[ClaimFacts]) -> dict[str, dict[str, int]]:
    """The sum of `status.allocatable` of each pool's claims; a pool with any claim has an entry."""
    used: dict[str, dict[str, int]] = {}
    for claim in claims:
        if claim.pool:
            total = used.setdefault(claim.pool, {})
            for name, milli in _millis(claim.allocatable).items():
                total[name] = total.get(name, 0) + milli
    return used


def potential(limits: QuantityMap | None, used: Mapping[str, int], request: Mapping[str, int]) -> int:
    """Replicas that fit into the rest of the limits that the request uses; 0 if it uses none."""
    ceilings = _millis(limits)
    fits = [
        max(ceilings[name] - used.get(name, 0), 0) // milli
        for name, milli in request.items()
        if milli > 0 and name in ceilings
    ]
    return min((UNLIMITED, *fits)) if fits else 0


def _millis(quantities: QuantityMap | None) -> dict[str, int]:
    """In thousandths; as in that change, a value that is not a quantity in text is skipped."""
    millis: dict[str, int] = {}
    for name, text in (quantities or {}).items():
        if isinstance(text, str):
            try:
                millis[name] = quantity.milli_value(text)
            except Invalid:
                continue
    return millis


class KarpenterLimitsProvider:
    """Karpenter's pools as a capacity provider, by their limits alone."""

    name = "karpenter"
    aspects = Aspect.POOLS | Aspect.NODECLAIMS

    def __init__(
        self,
        clock: Clock,
        *,
        failure_threshold_seconds: float = FAILURE_THRESHOLD_SECONDS,
        recovery_interval_seconds: float = RECOVERY_INTERVAL_SECONDS,
    ) -> None:
        self.tracking = PoolFailureTracker()
        self._clock = clock
        self._threshold, self._recovery = failure_threshold_seconds, recovery_interval_seconds

    def estimate(self, question: EstimateQuestion) -> Estimate:
        snapshot = question.snapshot
        pools = list(snapshot.pool_objects.values())
        if not pools:
            return no_opinion("karpenter has no pools")
        waiting = len(snapshot.room.pending) > len(snapshot.facts.buffers.shapes)  # these are pending, too
        return self.total(pools, snapshot.claims, requested(question), pending=waiting)

    def total(
        self,
        pools: Iterable[NodePool],
        claims: Iterable[ClaimFacts],
        request: Mapping[str, int],
        *,
        pending: bool,
    ) -> Estimate:
        """The sum over the pools that count. `request` is in thousandths."""
        used = used_by_pool(claims)
        now = self._clock.monotonic()
        parts: list[CapacityPart] = []
        for pool in pools:
            takes_part = self.tracking.counts(
                pool.name,
                has_claims=pool.name in used,
                pending=pending,
                now=now,
                threshold=self._threshold,
                recovery=self._recovery,
            )
            name = f"{self.name}/{pool.name}"
            if takes_part:
                parts.append(
                    CapacityPart(name, potential(pool.spec.limits, used.get(pool.name, {}), request))
                )
            else:
                parts.append(CapacityPart(name, 0, reasons=("the pool launched nothing for pending pods",)))
        return Estimate(min(sum(part.amount for part in parts), UNLIMITED), parts=tuple(parts))


def requested(question: EstimateQuestion) -> dict[str, int]:
    """One replica's request in thousandths; a set of components has none."""
    request = question.request
    shape = getattr(request, "shape", None)
    if shape is None:
        return {}
    return {name: units if name == CPU else units * 1000 for name, units in shape.requests}
