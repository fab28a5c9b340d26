"""NodePools: validation, usage, and the hash for drift detection."""

from typing import Any

from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    ON_DEMAND,
    RESERVED,
    SPOT,
    CompiledPool,
    NodePool,
    pool_of,
)
from karpool.model.kubernetes.times import rfc3339
from karpool.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, NODES, PODS, quantities
from karpool_fleet.karpenter.lifecycle.conditions import (
    FALSE,
    NODE_CLASS_READY,
    OF_POOL,
    TRUE,
    VALIDATION_SUCCEEDED,
    Conditions,
)
from karpool_fleet.karpenter.provisioning.claims import HASH, HASH_VERSION, VERSION, pool_hash
from karpool_fleet.karpenter.shared import Shared
from karpool_fleet.runtime.controller import looking_again

_ALWAYS_SHOWN = (CPU, MEMORY, PODS, EPHEMERAL_STORAGE, NODES)
_CAPACITY_TYPES = (SPOT, ON_DEMAND, RESERVED)


class Pools:
    def __init__(self, shared: Shared) -> None:
        context = shared.context
        self._queue: WorkQueue[str] = WorkQueue(context.clock, chance=context.random.random)
        self._clock = context.clock
        self._view = shared.view
        self._health = shared.health
        self._settings = shared.settings
        self._view.pools.subscribe(self._on_pool)
        self._view.on_usage.append(
            lambda name: self._queue.add_after(name, self._settings.pool_status_seconds)
        )
        self._health.on_change.append(self._queue.add)

    async def run(self) -> None:
        await self._queue.run(looking_again(self.reconcile), workers=2)

    def _on_pool(self, before: NodePool | None, after: NodePool | None) -> None:
        if after is not None:
            self._queue.add(after.name)
        elif before is not None:
            self._health.forget(before.name)

    async def reconcile(self, name: str) -> Requeue | None:
        pool: NodePool | None = self._view.pools.get(name)
        if pool is None:
            return None
        hashes = {HASH: pool_hash(pool), HASH_VERSION: VERSION}
        if any(pool.annotations.get(key) != value for key, value in hashes.items()):
            pool = await self._view.pools.patch(pool, {"metadata": {"annotations": hashes}})
        if pool is not None and (status := self._status(pool)):
            await self._view.pools.patch(pool, {"status": status}, status=True)
        return None

    def _status(self, pool: NodePool) -> dict[str, Any]:
        """Return only the changed fields of the status."""
        now = self._clock.now()
        before = pool.status
        conditions = Conditions(
            before.conditions if before is not None else None,
            OF_POOL,
            created=pool.metadata.creation_timestamp or rfc3339(now),
            generation=pool.metadata.generation,
            now=rfc3339(now),
        )
        if problem := invalid(pool):
            conditions.set(VALIDATION_SUCCEEDED, FALSE, "NodePoolValidationFailed", problem)
        else:
            conditions.set(VALIDATION_SUCCEEDED, TRUE)
        conditions.set(NODE_CLASS_READY, TRUE)
        self._health.apply(pool.name, pool.metadata.generation, conditions)
        status: dict[str, Any] = {}
        if (wire := conditions.wire()) is not None:
            status["conditions"] = wire
        usage = self._view.usage(pool.name)
        shown = {name: usage.get(name, 0) for name in (*_ALWAYS_SHOWN, *usage)}
        resources = quantities(
            {name: units for name, units in shown.items() if units or name in _ALWAYS_SHOWN}
        )
        if before is None or before.resources != resources:
            gone = {
                name: None for name in (before.resources if before else None) or () if name not in resources
            }
            status["resources"] = {**resources, **gone}
        if before is None or before.nodes != usage.get(NODES, 0):
            status["nodes"] = usage.get(NODES, 0)
        return status


def invalid(pool: NodePool) -> str:
    """Return what Karpenter would refuse at run time, or an empty text."""
    try:
        compiled: CompiledPool = pool_of(pool)
    except Invalid as error:
        return str(error)
    kinds = compiled.requirements.get(CAPACITY_TYPE)
    if kinds is not None and not kinds.complement:
        capacity_types = [kind for kind in _CAPACITY_TYPES if kind in kinds]
        if len(capacity_types) < max(1, kinds.min_values or 0):
            return f"requirement {CAPACITY_TYPE} has too few of {', '.join(_CAPACITY_TYPES)}"
    return ""
