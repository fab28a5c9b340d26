"""Karpenter's objects as the cluster shows them, kept current by informers.

Pools compiled, daemons, node classes, the pods that wait for a node; claims and nodes are
in `claims_and_nodes`, events in `provisioning.stock_outs`. `version` changes with everything that
could change an answer. An object that cannot be understood is left out, and a pool that
is left out says why.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import structlog

from karpool.estimator.claims_and_nodes import ClaimsAndNodes
from karpool.estimator.framework import Watched
from karpool.estimator.market import Market
from karpool.estimator.waiting import LIVE_PODS, ObjectSink, WaitingForNodes
from karpool.kube.clock import Clock, moment
from karpool.kube.event_object import Event
from karpool.kube.resource import (
    DAEMONSETS,
    EC2NODECLASSES,
    EVENTS,
    NODECLAIMS,
    NODEPOOLS,
    NODES,
    PODS,
    Key,
    Selection,
)
from karpool.model.errors import Invalid
from karpool.model.karpenter import NodeClaim, NodePool, Pool, pool_of
from karpool.model.meta import Wire, WireObject, condition
from karpool.model.node import ZONE, Node
from karpool.model.pod import Pod
from karpool.model.requirements import ValueSet, combined
from karpool.provisioning.failures import Cause, Failures
from karpool.provisioning.stock_outs import OUT_OF_STOCK, StockEvents

log = structlog.get_logger(__name__)
T = TypeVar("T")

STOCK_EVENTS = Selection(field_selector=f"reason={OUT_OF_STOCK}")


class Subnet(Wire, frozen=True):
    zone: str = ""


class NodeClassStatus(Wire, frozen=True):
    subnets: list[Subnet] | None = None


class NodeClass(WireObject, frozen=True):
    status: NodeClassStatus | None = None


class KarpenterObjects:
    def __init__(self, market: Market, failures: Failures, clock: Clock) -> None:
        self.market = market
        self.failures = failures
        self.pods = WaitingForNodes(clock)
        self.problems: dict[str, str] = {}  # of pools that cannot be understood
        self.events = StockEvents(failures, clock)
        self.machines = ClaimsAndNodes(market, failures, self.events, clock)
        self._clock = clock
        self._changes = 0
        self._offered = 0  # changes of what could be launched
        self._pools: dict[str, Pool] = {}
        self._zones: dict[str, frozenset[str]] = {}  # by node class

    @cached_property
    def watches(self) -> Sequence[Watched[Any]]:
        machines, pods = self.machines, self.pods
        claims = ObjectSink(machines.put_claim, machines.drop_claim)
        events = ObjectSink(self.events.put, lambda key: None)
        return (
            Watched(NODEPOOLS, NodePool, ObjectSink(self.put_pool, self._drop_pool), optional=True),
            Watched(EC2NODECLASSES, NodeClass, ObjectSink(self.put_class, self._drop_class), optional=True),
            Watched(NODECLAIMS, NodeClaim, claims, optional=True),
            Watched(NODES, Node, ObjectSink(machines.put_node, machines.drop_node)),
            Watched(DAEMONSETS, dict, ObjectSink(pods.put_daemon_set, pods.drop_daemon_set), optional=True),
            Watched(PODS, Pod, ObjectSink(pods.put_pod, pods.drop_pod), LIVE_PODS),
            Watched(EVENTS, Event, events, STOCK_EVENTS, optional=True),
        )

    # Reading

    @property
    def version(self) -> tuple[int, int, int]:
        return self._changes, self.machines.version, self.pods.version

    @property
    def offered_version(self) -> tuple[int, int, tuple[int, int]]:
        """Changes with pools, daemons and the catalogue."""
        return self._offered, self.pods.daemons_version, self.market.version

    @property
    def has_pools(self) -> bool:
        return bool(self._pools or self.problems)

    def pools(self) -> list[Pool]:
        """Each with the zones in which its node class has subnets, where that is known."""
        return [self._in_its_zones(pool) for pool in self._pools.values()]

    def _in_its_zones(self, pool: Pool) -> Pool:
        zones = self._zones.get(pool.node_class_ref.name)
        if not zones:
            return pool
        return replace(pool, requirements=combined(pool.requirements, {ZONE: ValueSet(zones)}))

    # Pools and node classes

    def put_pool(self, key: Key, pool: NodePool) -> None:
        self._pool_changed()
        name = pool.name
        self.market.see_pool(pool)
        try:
            compiled = pool_of(pool)
        except Invalid as error:
            self._pools.pop(name, None)
            self.problems[name] = str(error)
            return
        self.problems.pop(name, None)
        self._pools[name] = compiled
        print_ = (
            frozenset(compiled.limits.items()),
            frozenset(compiled.requirements.items()),
            compiled.taints,
        )
        self.failures.pool_seen(name, print_, self._clock.now())
        healthy = condition(pool.status.conditions, "NodeRegistrationHealthy") if pool.status else None
        if healthy is not None and healthy.status == "False":
            message = healthy.message or "its nodes do not register"
            since = moment(healthy.last_transition_time)
            at = self._clock.now() if since is None else since
            self.failures.failed(name, Cause.REGISTRATION, at, message)

    def _drop_pool(self, key: Key) -> None:
        self._pool_changed()
        self._pools.pop(key.name, None)
        self.problems.pop(key.name, None)
        self.failures.pool_gone(key.name)

    def put_class(self, key: Key, found: NodeClass) -> None:
        subnets = (found.status.subnets if found.status else None) or ()
        zones = frozenset(each.zone for each in subnets if each.zone)
        self.market.see_zones(sorted(zones))
        if self._zones.get(key.name) != zones:
            self._zones[key.name] = zones
            self._pool_changed()

    def _drop_class(self, key: Key) -> None:
        if self._zones.pop(key.name, None):
            self._pool_changed()

    def _pool_changed(self) -> None:
        self._changes += 1
        self._offered += 1
