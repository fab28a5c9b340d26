"""What cannot be bought at the moment, so that no replacement is planned into a stock-out.

Learnt from Karpenter's events and from claims, as the estimator learns it; forgotten when
a node of that kind arrives, or after a while. Feed it through `watches`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from karpool.cluster.changes import PutDropSink
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.stock_outs import OUT_OF_STOCK, StockOutEvents, offer_of
from karpool.consolidation.view import ClusterView
from karpool.kube.clock import Clock
from karpool.kube.watched import WatchedKind
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.api_resources import EVENTS, NODECLAIMS, ListOptions, ObjectKey
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.times import moment


class Stock:
    def __init__(self, clock: Clock, failures: LaunchFailures | None = None) -> None:
        self.failures = failures or LaunchFailures()
        self._clock = clock
        self._events = StockOutEvents(self.failures)

    @cached_property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        refused = ListOptions(field_selector=f"reason={OUT_OF_STOCK}")
        return (
            WatchedKind(NODECLAIMS, NodeClaim, PutDropSink(self.put_claim, _forget), optional=True),
            WatchedKind(EVENTS, KubeEvent, PutDropSink(self._events.put, _forget), refused, optional=True),
        )

    def put_claim(self, key: ObjectKey, claim: NodeClaim) -> None:
        self._events.remember(claim, self._clock.now())
        registered = condition(claim.status.conditions, "Registered")
        if registered is not None and registered.status == "True":
            at = moment(registered.last_transition_time)
            if at is not None:
                self.failures.succeeded(claim.pool_name, offer_of(claim), at)

    def seen_in(self, view: ClusterView, now: float) -> ClusterView:
        """The view without what cannot be had: offerings, and pools that do not deliver at all."""
        self._events.understand(now, view.pools)
        stock = tuple(dict.fromkeys((*view.unavailable, *self.failures.stock_outs(now))))
        dry = [name for name in view.pools if self.failures.of_pool(name, now) is not None]
        if not dry and stock == tuple(view.unavailable):
            return view
        pools = {**view.pools, **{name: replace(view.pools[name], ready=False) for name in dry}}
        return replace(view, unavailable=stock, pools=pools)


def _forget(key: ObjectKey) -> None:
    """A claim or an event that is gone says nothing more; what it said is remembered for a while."""
