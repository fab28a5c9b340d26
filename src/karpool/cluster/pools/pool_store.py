"""NodePools, compiled and restricted to the zones in which their node class has subnets.

A pool that cannot be read is `broken`: it launches nothing, and its nodes are not disrupted.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.market import Market
from karpool.model.errors import Invalid
from karpool.model.karpenter.node_class import NodeClass
from karpool.model.karpenter.objects import CompiledPool, NodeClassRef, NodePool, pool_of
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.times import moment
from karpool.model.requirements import ValueSet, combined


class PoolStore:
    """NodePools. `version` increases with every change."""

    def __init__(self, market: Market, failures: LaunchFailures) -> None:
        self.version = 0
        self.objects: dict[str, NodePool] = {}
        self.broken: dict[str, str] = {}  # with the reason
        self._market = market
        self._failures = failures
        self._compiled: dict[str, CompiledPool] = {}
        self._zones: dict[NodeClassRef, frozenset[str]] = {}
        self._narrowed: Mapping[str, CompiledPool] | None = None

    def compiled(self) -> Mapping[str, CompiledPool]:
        """Return the pools with the zones of their node class, if known; the same until something changes."""
        if self._narrowed is None:
            self._narrowed = MappingProxyType(
                {name: self._in_its_zones(pool) for name, pool in self._compiled.items()}
            )
        return self._narrowed

    def put_pool(self, pool: NodePool, now: float) -> None:
        self._changed()
        name = pool.name
        self._market.see_pool(pool)
        self.objects = {**self.objects, name: pool}
        try:
            compiled = pool_of(pool)
        except Invalid as error:
            self.unreadable(name, str(error))
            return
        self.broken = {key: why for key, why in self.broken.items() if key != name}
        self._compiled[name] = compiled
        self._observe(pool, compiled, now)

    def _observe(self, pool: NodePool, compiled: CompiledPool, now: float) -> None:
        """Record what the pool shows about its ability to launch."""
        fingerprint = (
            frozenset(compiled.limits.items()),
            frozenset(compiled.requirements.items()),
            compiled.taints,
        )
        self._failures.pool_seen(pool.name, fingerprint, now)
        healthy = condition(pool.status.conditions, "NodeRegistrationHealthy") if pool.status else None
        if healthy is not None and healthy.status == "False":
            message = healthy.message or "its nodes do not register"
            since = moment(healthy.last_transition_time)
            self._failures.failed(
                pool.name, LaunchReason.REGISTRATION_FAILED, now if since is None else since, message
            )

    def unreadable(self, name: str, reason: str) -> None:
        self._changed()
        self._compiled.pop(name, None)
        self.broken = {**self.broken, name: reason}

    def drop_pool(self, name: str) -> None:
        self._changed()
        self._compiled.pop(name, None)
        self.broken = {key: why for key, why in self.broken.items() if key != name}
        self.objects = {key: pool for key, pool in self.objects.items() if key != name}
        self._failures.pool_gone(name)
        self._market.forget_pool(name)

    def put_class(self, reference: NodeClassRef, node_class: NodeClass) -> None:
        zones = node_class.zones
        self._market.see_node_class(node_class)
        if self._zones.get(reference) != zones:
            self._zones[reference] = zones
            self._changed()

    def drop_class(self, reference: NodeClassRef) -> None:
        if self._zones.pop(reference, None):
            self._changed()

    def _in_its_zones(self, pool: CompiledPool) -> CompiledPool:
        zones = self._zones.get(pool.node_class_ref)
        if not zones:
            return pool
        return replace(pool, requirements=combined(pool.requirements, {ZONE: ValueSet(zones)}))

    def _changed(self) -> None:
        self.version += 1
        self._narrowed = None
