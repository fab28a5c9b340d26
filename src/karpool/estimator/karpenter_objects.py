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

from karpool.cluster.changes import PutDropSink
from karpool.cluster.kinds import LIVE_PODS
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.market import Market
from karpool.cluster.market.stock_outs import OUT_OF_STOCK, StockOutEvents
from karpool.estimator.claims_and_nodes import NodeClaimStore
from karpool.estimator.waiting import PendingPodStore
from karpool.kube.clock import Clock
from karpool.kube.watched import WatchedKind
from karpool.model.errors import Invalid
from karpool.model.karpenter.node_class import NodeClass
from karpool.model.karpenter.objects import CompiledPool, NodeClaim, NodePool, pool_of
from karpool.model.kubernetes.api_resources import (
    DAEMONSETS,
    EC2NODECLASSES,
    EVENTS,
    NODECLAIMS,
    NODEPOOLS,
    NODES,
    PODS,
    ListOptions,
    ObjectKey,
)
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import moment
from karpool.model.requirements import ValueSet, combined

log = structlog.get_logger(__name__)
T = TypeVar("T")

STOCK_EVENTS = ListOptions(field_selector=f"reason={OUT_OF_STOCK}")


class KarpenterObjects:
    def __init__(self, market: Market, failures: LaunchFailures, clock: Clock) -> None:
        self.market = market
        self.failures = failures
        self.pods = PendingPodStore(clock)
        self.problems: dict[str, str] = {}  # of pools that cannot be understood
        self.events = StockOutEvents(failures)
        self.machines = NodeClaimStore(market, failures, self.events, clock)
        self._clock = clock
        self._changes = 0
        self._offered = 0  # changes of what could be launched
        self._pools: dict[str, CompiledPool] = {}
        self._zones: dict[str, frozenset[str]] = {}  # by node class

    @cached_property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        machines, pods = self.machines, self.pods
        claims = PutDropSink(machines.put_claim, machines.drop_claim)
        events = PutDropSink(self.events.put, lambda key: None)
        return (
            WatchedKind(NODEPOOLS, NodePool, PutDropSink(self.put_pool, self._drop_pool), optional=True),
            WatchedKind(
                EC2NODECLASSES, NodeClass, PutDropSink(self.put_class, self._drop_class), optional=True
            ),
            WatchedKind(NODECLAIMS, NodeClaim, claims, optional=True),
            WatchedKind(NODES, Node, PutDropSink(machines.put_node, machines.drop_node)),
            WatchedKind(
                DAEMONSETS, dict, PutDropSink(pods.put_daemon_set, pods.drop_daemon_set), optional=True
            ),
            WatchedKind(PODS, Pod, PutDropSink(pods.put_pod, pods.drop_pod), LIVE_PODS),
            WatchedKind(EVENTS, KubeEvent, events, STOCK_EVENTS, optional=True),
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

    def pools(self) -> list[CompiledPool]:
        """Each with the zones in which its node class has subnets, where that is known."""
        return [self._in_its_zones(pool) for pool in self._pools.values()]

    def _in_its_zones(self, pool: CompiledPool) -> CompiledPool:
        zones = self._zones.get(pool.node_class_ref.name)
        if not zones:
            return pool
        return replace(pool, requirements=combined(pool.requirements, {ZONE: ValueSet(zones)}))

    # Pools and node classes

    def put_pool(self, key: ObjectKey, pool: NodePool) -> None:
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
            self.failures.failed(name, LaunchReason.REGISTRATION_FAILED, at, message)

    def _drop_pool(self, key: ObjectKey) -> None:
        self._pool_changed()
        self._pools.pop(key.name, None)
        self.problems.pop(key.name, None)
        self.failures.pool_gone(key.name)

    def put_class(self, key: ObjectKey, found: NodeClass) -> None:
        zones = found.zones
        self.market.see_zones(sorted(zones))
        if self._zones.get(key.name) != zones:
            self._zones[key.name] = zones
            self._pool_changed()

    def _drop_class(self, key: ObjectKey) -> None:
        if self._zones.pop(key.name, None):
            self._pool_changed()

    def _pool_changed(self) -> None:
        self._changes += 1
        self._offered += 1
