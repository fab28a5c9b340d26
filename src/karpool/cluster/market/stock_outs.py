"""Karpenter's events about stock, and the offerings that they concern.

An event names a claim that is usually deleted by then, so the requirements of claims are remembered for a
while. After a restart that memory is empty: the event then counts for the whole pool that the claim is named
after.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import product

from karpool.cluster.market.failures import RECOVERY_SECONDS, LaunchFailures, OfferingKey
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CAPACITY_TYPE, SPOT, NodeClaim, NodeClaimSpec, requirements_of
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE

OUT_OF_STOCK = "InsufficientCapacityError"
_CLAIMS_REMEMBERED = 1000
# An API server keeps events for an hour, so claims are remembered as long.
_REMEMBERED_SECONDS = 3600.0
_EVENTS_MAX = 5000
# Events and claims arrive over different watches; a claim may be a moment behind its event.
_PATIENCE_SECONDS = 10.0


class StockOutEvents:
    def __init__(self, failures: LaunchFailures) -> None:
        self._failures = failures
        self._waiting: OrderedDict[str, KubeEvent] = OrderedDict()  # by claim, the latest event
        # Oldest first: when it was first seen, its pool, and the requested offerings.
        self._claims: OrderedDict[str, tuple[float, str, tuple[OfferingKey, ...]]] = OrderedDict()

    def put(self, key: ObjectKey, event: KubeEvent) -> None:
        if event.reason == OUT_OF_STOCK and event.involved_object.kind == "NodeClaim":
            self._waiting[event.involved_object.name] = event
            while len(self._waiting) > _EVENTS_MAX:
                self._waiting.popitem(last=False)

    def remember(self, claim: NodeClaim, now: float) -> None:
        self._forget_claims(now)
        if claim.pool_name and claim.name not in self._claims:
            self._claims[claim.name] = now, claim.pool_name, tuple(offers_of(claim))

    def _forget_claims(self, now: float) -> None:
        while self._claims:
            since, _, _ = next(iter(self._claims.values()))
            if len(self._claims) < _CLAIMS_REMEMBERED and now - since < _REMEMBERED_SECONDS:
                return
            self._claims.popitem(last=False)

    def understand(self, now: float, pools: Collection[str]) -> None:
        """Turn events into failures, when their claim is known or will not become known."""
        if not self._waiting:
            return
        self._forget_claims(now)
        for name, event in list(self._waiting.items()):
            at = now if event.at is None else event.at
            _, pool, offers = self._claims.get(name) or (now, "", ())
            if not pool and now - at < _PATIENCE_SECONDS:
                continue
            pool = pool or _pool_named(name, pools)
            if not pool and now - at < RECOVERY_SECONDS:
                continue  # pools arrive over yet another watch
            del self._waiting[name]
            if pool and offers:
                self._failures.out_of_stock(pool, offers, at, event.message)
            elif pool:
                self._failures.failed(pool, LaunchReason.STOCK_OUT, at, event.message)


def _pool_named(claim: str, pools: Collection[str]) -> str:
    """Return the pool in the name of a claim, because Karpenter names claims after their pool."""
    return max((name for name in pools if claim.startswith(f"{name}-")), key=len, default="")


def offer_of(claim: NodeClaim) -> OfferingKey | None:
    labels = claim.labels
    offer = OfferingKey(labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, ""))
    return offer if all(offer) else None


def offers_of(claim: NodeClaim) -> Iterator[OfferingKey]:
    """Yield the offerings that a launch of the claim would have tried; without a zone, any zone."""
    kinds = listed_values(claim.spec, CAPACITY_TYPE)
    if SPOT in kinds:
        kinds = [SPOT]  # others are tried only if no spot offering is left
    types, zones = listed_values(claim.spec, INSTANCE_TYPE), listed_values(claim.spec, ZONE)
    places = product(types, zones or [""], kinds or [""])
    return (OfferingKey(*place) for place in places)


def listed_values(spec: NodeClaimSpec, key: str) -> list[str]:
    """Return the values that a requirement of the claim lists, if any."""
    try:
        values = requirements_of(spec.requirements or (), "spec.requirements").get(key)
    except Invalid:
        return []
    return [] if values is None or values.complement else sorted(values.values)
