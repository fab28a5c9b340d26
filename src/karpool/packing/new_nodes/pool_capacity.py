"""How many replicas of one shape new nodes could take, without placing them one by one.

Karpenter plans nodes of the first pool in order of weight that can launch one, fills each node until no type
holds one more pod, and charges the limits of the pool for the largest type that the node could have become.
For equal pods this has a closed form: equal nodes come in runs, and a run ends when its largest type no
longer fits into the remaining limits. So the cost grows with the types that limits cut off, not with
replicas.

Guarantees against `pack_new_nodes` with the same input: the count is never higher than what it places, and a
larger limit never means fewer replicas. Karpenter's own rule is not monotone (a machine that is large but
holds few pods, once the limits allow it, is charged for every node). Where that could happen, the smaller of
the two numbers is returned. The difference is at most what the last machine's worth of limit holds; in a pool
that limits a resource that some types lack, also what the types with the resource hold beyond the others.

Only for shapes whose placement does not depend on other pods. Not for concurrent use.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import Resources, add
from karpool.packing.new_nodes.claim_templates import DriversToCome, claim_demand
from karpool.packing.new_nodes.compiled_shapes import CompiledShapes
from karpool.packing.new_nodes.node_plan import NodePlan, PoolCapacity, Usage
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.new_nodes.pack import in_order
from karpool.packing.new_nodes.pool_ceiling import pool_ceiling


class NewNodeCapacity:
    """What some pools could launch, compiled once and reused."""

    def __init__(
        self,
        pools: Iterable[CompiledPool],
        offerings: Offerings,
        *,
        daemons: Sequence[PodShape] = (),
        unavailable: Collection[StockOut] = (),
        drivers: DriversToCome | None = None,
    ) -> None:
        self.pools = in_order(pools)
        self._offers = [offerings.for_pool(pool) for pool in self.pools if pool.is_usable]
        self._daemons = tuple(daemons)
        self._unavailable = tuple(unavailable)
        self._drivers = drivers
        self._shapes = self._start()

    def _start(self) -> CompiledShapes:
        return CompiledShapes(self.pools, self._offers, self._daemons, self._unavailable, self._drivers)

    def plan(self, usage: Usage, *, nodes_max: int, skip: Collection[str] = ()) -> NodePlan:
        """Return an empty plan. Each pool launches at most `nodes_max` nodes; pools in `skip` launch none."""
        if self._shapes.is_full:
            self._shapes = self._start()
        return NodePlan(self._shapes, usage, nodes_max=nodes_max, skip=skip)

    def potential(
        self,
        shape: PodShape,
        usage: Usage,
        *,
        nodes_max: int,
        wanted: int | None = None,
        skip: Collection[str] = (),
    ) -> list[PoolCapacity]:
        """Return what the pools could launch for one shape if no other pod is pending."""
        return self.plan(usage, nodes_max=nodes_max, skip=skip).capacity(shape, wanted=wanted)

    def ceiling(self, usage: Usage, *, nodes_max: int, skip: Collection[str] = ()) -> Resources:
        """Return by resource an upper bound of what any packing gets from all pools."""
        total: Resources = {}
        for offer in self._offers:
            if offer.pool.name not in skip:
                used = usage.get(offer.pool.name, {})
                add(total, pool_ceiling(offer, used, nodes_max, self._unavailable))
        return total

    def is_unclear_for(self, shape: PodShape) -> bool:
        """Whether a pod needs DRA devices and no type of these pools is known to have them."""
        offered = () if self._drivers is None else self._drivers.offered
        demand = claim_demand(shape, offered)
        if demand is None:
            return False
        return not any(bool(launch.device_counts(demand).any()) for launch in self._shapes.launch)

    def launches(self, shape: PodShape, pool: CompiledPool, used: Mapping[str, int]) -> bool:
        """Whether the pool could launch a node for one such pod now."""
        others = [other.name for other in self.pools if other.name != pool.name]
        return self.plan({pool.name: used}, nodes_max=1, skip=others).place(shape, 1) > 0
