"""Karpenter as a capacity provider: nodes that are coming up, and nodes it could still launch.

No request reaches the API server: everything is kept by informers. Replicas go onto
claims without a usable node first, then onto new nodes: pools in order of weight, the
instance types that pool and pod both allow, daemon overhead, stock, and what is left of
the limits, charged by capacity. A pool without limits counts up to `nodes_max` nodes. A
pool or an offering that fails to deliver does not count for a while.

For pods without topology, and for sets of components, groups of pods are planned at once
(`packing.new_nodes.node_plan`). With topology pods are really packed, a bounded number of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from karpool.cluster.market.failures import (
    RECOVERY_SECONDS,
    THRESHOLD_SECONDS,
    LaunchFailure,
    LaunchFailures,
    OnFailures,
)
from karpool.cluster.market.market import Market
from karpool.estimator.karpenter_objects import KarpenterObjects
from karpool.estimator.plugins.interface import UNLIMITED, CapacityPart, Estimate, no_opinion
from karpool.estimator.providers.incoming_capacity import (
    IncomingNode,
    ProviderState,
    after_assumed,
    coming_rows,
    rows_snapshot,
    serve_pending,
)
from karpool.estimator.providers.packed_capacity import (
    EXISTING_MAX,
    SHOWN_REASONS,
    SHOWN_TYPES,
    PackedCapacityInput,
    in_flight,
    packed,
    sets_that_fit,
)
from karpool.estimator.question import EstimateQuestion
from karpool.estimator.waiting import without_topology
from karpool.kube.clock import Clock
from karpool.kube.watched import WatchedKind
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import MANY, fits, in_play
from karpool.packing.counting.first_fit import NodeFilling
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.new_nodes.node_plan import PoolCapacity
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from karpool.packing.tables.columns import Int64s
from karpool.packing.tables.room import Room
from karpool.wire.requests import ComponentSetsRequest

NAME = "karpenter"
NODES_MAX = 1000  # per pool
_FRESH_SECONDS = 1.0  # for so long failures are not looked at again


class KarpenterProvider:
    name = NAME

    def __init__(
        self,
        clock: Clock,
        market: Market | None = None,
        *,
        nodes_max: int = NODES_MAX,
        failure_threshold_seconds: float = THRESHOLD_SECONDS,
        recovery_interval_seconds: float = RECOVERY_SECONDS,
    ) -> None:
        self.failures = LaunchFailures(
            threshold_seconds=failure_threshold_seconds, recovery_seconds=recovery_interval_seconds
        )
        self.market = market or Market()
        self.objects = KarpenterObjects(self.market, self.failures, clock)
        self.on_failures: list[OnFailures] = []
        self._clock = clock
        self._nodes_max = nodes_max
        self._new: tuple[Any, NewNodeCapacity] | None = None
        self._moment: tuple[Any, float, ProviderState] | None = None
        self._known: dict[tuple[str, Any], LaunchFailure] = {}

    @cached_property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        return self.objects.watches

    # Answering

    def estimate(self, question: EstimateQuestion) -> Estimate:
        return self.plan(question, None)

    def plan(self, question: EstimateQuestion, wanted: int | None) -> Estimate:
        """As `estimate`; with `wanted`, no more than it takes to hold so many next to existing nodes."""
        if not self.objects.has_pools and not self.objects.machines.claims:
            return no_opinion("karpenter has no pools")
        shape = getattr(question.request, "shape", PodShape())
        moment = self._after_assumed(question, without_topology(shape))
        if question.topology and in_play(question.room, shape) and question.existing <= EXISTING_MAX:
            parts = [*packed(self._stage(moment), question, shape, wanted), *self._failed(moment)]
        else:
            parts = self._counted(question, moment, without_topology(shape), wanted)
        total = sum(part.amount for part in parts)
        return Estimate(min(total, UNLIMITED), reasons=self._remarks(), parts=tuple(parts))

    def estimate_components(self, question: EstimateQuestion) -> Estimate:
        if not isinstance(question.request, ComponentSetsRequest):
            return no_opinion("karpenter was asked for no components")
        if not self.objects.has_pools and not self.objects.machines.claims:
            return no_opinion("karpenter has no pools")
        moment = self._after_assumed(question)
        groups = [
            Group(without_topology(component.shape), component.replicas)
            for component in question.request.components
            if component.replicas
        ]
        if not groups:
            return no_opinion("no component has replicas")
        sets = sets_that_fit(self._stage(moment), question, groups)
        reasons = () if sets else ("no complete set fits on nodes that are coming or could be launched",)
        return Estimate(
            sets, parts=(CapacityPart(self.name, sets, reasons=reasons),), reasons=self._remarks()
        )

    def failing(self) -> list[LaunchFailure]:
        """Pools and offerings that do not count at present."""
        return self.failures.current(self._clock.now())

    # The moment

    def moment(self, snapshot: Room) -> ProviderState:
        now = self._clock.now()
        objects = self.objects
        busy = (
            objects.pods.waiting or any(True for _ in objects.machines.coming()) or objects.machines.going()
        )
        key = objects.version, objects.offered_version, snapshot.version if busy else None
        if self._moment is not None:
            known, at, moment = self._moment
            if known == key and 0 <= now - at < _FRESH_SECONDS:
                return moment
        moment = self._look(snapshot, now)
        self._moment = key, now, moment
        return moment

    def _look(self, snapshot: Room, now: float) -> ProviderState:
        objects = self.objects
        pools = objects.pools()
        objects.events.understand(now, [pool.name for pool in pools])
        new = self._compiled(pools, now)
        coming = coming_rows(objects, snapshot)
        filling = NodeFilling(rows_snapshot(coming), topology=False)
        plan, failed = serve_pending(
            new,
            filling,
            objects.machines.usage(),
            objects.pods.demands(snapshot, objects.machines.going(), now),
            self.failures,
            now=now,
            nodes_max=self._nodes_max,
        )
        self._tell(now)
        launched = [incoming_node for incoming_node in coming if incoming_node.launched]
        rows = filling.snapshot().without([node.row.name for node in coming if not node.launched])
        return ProviderState(new, launched, rows, plan, failed)

    def _compiled(self, pools: Sequence[CompiledPool], now: float) -> NewNodeCapacity:
        stock = self.failures.stock_outs(now)
        key = self.objects.offered_version, stock
        if self._new is None or self._new[0] != key:
            daemons = tuple(self.objects.pods.daemons.shapes.values())
            new = NewNodeCapacity(pools, self.market.offerings, daemons=daemons, unavailable=stock)
            self._new = key, new
        return self._new[1]

    def _stage(self, moment: ProviderState) -> PackedCapacityInput:
        daemons = tuple(self.objects.pods.daemons.shapes.values())
        stock = self.failures.stock_outs(self._clock.now())
        return PackedCapacityInput(self.name, moment, self.market.offerings, daemons, stock, self._nodes_max)

    def _after_assumed(self, question: EstimateQuestion, asked: PodShape | None = None) -> ProviderState:
        moment = self.moment(question.snapshot)
        return after_assumed(moment, question.deduction, asked) if question.assumed else moment

    def _tell(self, now: float) -> None:
        current = {
            (failure.pool, failure.offer or failure.cause): failure for failure in self.failures.current(now)
        }
        begun = [each for key, each in current.items() if key not in self._known]
        ended = [each for key, each in self._known.items() if key not in current]
        self._known = current
        if begun or ended:
            for tell in self.on_failures:
                tell(begun, ended)

    # Replicas in closed form

    def _counted(
        self, question: EstimateQuestion, moment: ProviderState, shape: PodShape, wanted: int | None
    ) -> list[CapacityPart]:
        parts = self._in_flight(question, moment, shape)
        if wanted is not None:
            wanted = max(0, wanted - question.existing)
            for index, part in enumerate(parts):
                parts[index] = replace(part, amount=min(part.amount, wanted))
                wanted -= parts[index].amount
        potential = moment.plan.capacity(shape, wanted=wanted, ahead=moment.ahead)
        parts += (self._part(capacity) for capacity in potential)
        return [*parts, *self._failed(moment)]

    def _in_flight(
        self, question: EstimateQuestion, moment: ProviderState, shape: PodShape
    ) -> list[CapacityPart]:
        coming = moment.coming
        if not coming:
            return []
        amounts = np.minimum(fits(moment.rows, shape), MANY)
        if any(node.twin for node in coming):
            amounts = _without_twins(amounts, question, coming, shape)
        by_pool: dict[str, int] = {}
        for each, amount in zip(coming, amounts.tolist(), strict=True):
            if amount:
                by_pool[each.pool] = by_pool.get(each.pool, 0) + amount
        return [
            CapacityPart(in_flight(self.name, pool), min(amount, UNLIMITED))
            for pool, amount in by_pool.items()
        ]

    def _part(self, potential: PoolCapacity) -> CapacityPart:
        return CapacityPart(
            f"{self.name}/{potential.pool}",
            min(potential.replicas, UNLIMITED),
            nodes=potential.nodes,
            instance_types=potential.instance_types[:SHOWN_TYPES],
            price_per_hour=potential.price_per_hour,
            reasons=tuple(refusal.detail for refusal in potential.refusals[:SHOWN_REASONS]),
            may_pass=any(infeasible.resolvable for infeasible in potential.refusals),
        )

    def _failed(self, moment: ProviderState) -> list[CapacityPart]:
        found = [
            CapacityPart(
                f"{self.name}/{name}", 0, reasons=(f"does not count at present: {failure}",), may_pass=True
            )
            for name, failure in moment.failed.items()
        ]
        found += (
            CapacityPart(f"{self.name}/{name}", 0, reasons=(why,))
            for name, why in self.objects.problems.items()
        )
        return found

    def _remarks(self) -> tuple[str, ...]:
        if self.market.known:
            return ()
        return (
            "karpenter: the region is not known, so only instance types seen on nodes count; set --region",
        )


def _without_twins(
    amounts: Int64s, question: EstimateQuestion, coming: Sequence[IncomingNode], shape: PodShape
) -> Int64s:
    """What existing nodes count for already is not counted again."""
    existing = fits(question.room, shape)
    own = np.zeros_like(amounts)
    for index, each in enumerate(coming):
        at = question.room.find(each.twin) if each.twin else None
        if at is not None:
            own[index] = existing[at]
    left: Int64s = np.maximum(amounts - own, 0)
    return left
