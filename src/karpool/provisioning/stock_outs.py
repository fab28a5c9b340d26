"""What Karpenter's events say about stock, and which offerings they are about.

An event names a claim that is usually gone by the time anybody looks. What claims asked
for is therefore remembered for a while. After a restart that memory is empty: then the
event is about the pool that the claim is named after, as a whole.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import product

from karpool.kube.clock import Clock
from karpool.kube.expiring import EVENT_SECONDS, ExpiringMap
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, SPOT, NodeClaim, requirements_of
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.provisioning.failures import RECOVERY_SECONDS, Cause, LaunchFailures, OfferingKey

OUT_OF_STOCK = "InsufficientCapacityError"
_CLAIMS_REMEMBERED = 1000
_EVENTS_MAX = 5000
# Events and claims come over different watches; a claim may be a moment behind its event.
_PATIENCE_SECONDS = 10.0


class StockOutEvents:
    def __init__(self, failures: LaunchFailures, clock: Clock) -> None:
        self._failures = failures
        self._waiting: OrderedDict[str, KubeEvent] = OrderedDict()  # by claim, the latest of each
        self._claims = ExpiringMap[str, tuple[str, tuple[OfferingKey, ...]]](
            clock, EVENT_SECONDS, _CLAIMS_REMEMBERED
        )

    def put(self, key: ObjectKey, event: KubeEvent) -> None:
        if event.reason == OUT_OF_STOCK and event.involved_object.kind == "NodeClaim":
            self._waiting[event.involved_object.name] = event
            while len(self._waiting) > _EVENTS_MAX:
                self._waiting.popitem(last=False)

    def remember(self, claim: NodeClaim) -> None:
        if claim.pool_name and claim.name not in self._claims:
            self._claims.put(claim.name, (claim.pool_name, tuple(offers_of(claim))))

    def understand(self, now: float, pools: Collection[str]) -> None:
        """Turn events into failures, as soon as their claim is known or will not be any more."""
        for name, event in list(self._waiting.items()):
            at = now if event.at is None else event.at
            pool, offers = self._claims.get(name) or ("", ())
            if not pool and now - at < _PATIENCE_SECONDS:
                continue
            pool = pool or _pool_named(name, pools)
            if not pool and now - at < RECOVERY_SECONDS:
                continue  # pools come over yet another watch
            del self._waiting[name]
            if pool and offers:
                self._failures.out_of_stock(pool, offers, at, event.message)
            elif pool:
                self._failures.failed(pool, Cause.CAPACITY, at, event.message)


def _pool_named(claim: str, pools: Collection[str]) -> str:
    """Karpenter names claims after their pool."""
    return max((name for name in pools if claim.startswith(f"{name}-")), key=len, default="")


def offer_of(claim: NodeClaim) -> OfferingKey | None:
    labels = claim.labels
    offer = OfferingKey(labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, ""))
    return offer if all(offer) else None


def offers_of(claim: NodeClaim) -> Iterator[OfferingKey]:
    """What a launch of the claim would have tried; without a zone in the claim, any zone."""
    kinds = listed_values(claim, CAPACITY_TYPE)
    if SPOT in kinds:
        kinds = [SPOT]  # others are tried only when there is no spot left to try
    places = product(listed_values(claim, INSTANCE_TYPE), listed_values(claim, ZONE) or [""], kinds or [""])
    return (OfferingKey(*place) for place in places)


def listed_values(claim: NodeClaim, key: str) -> list[str]:
    """The values that a claim's requirement lists; none when it lists none."""
    try:
        wanted = requirements_of(claim.spec.requirements or (), "spec.requirements").get(key)
    except Invalid:
        return []
    return [] if wanted is None or wanted.complement else sorted(wanted.values)
