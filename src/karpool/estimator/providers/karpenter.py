"""Karpenter as a capacity provider: coming nodes, and nodes it could still launch.

Questions do not reach the API server: informers keep everything. Replicas go onto claims without a usable
node first, then onto new nodes: pools in order of weight, the instance types that pool and pod both allow,
daemon overhead, stock, and the remaining limits, charged by capacity. A pool without limits counts up to
`nodes_max` nodes. A pool or an offering that fails to deliver does not count for a while.

For pods without topology, and for sets of components, groups of pods are planned at once
(`packing.new_nodes.node_plan`). Pods with topology are packed one by one, up to a limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from karpool.cluster.aspects import Aspect
from karpool.cluster.market.failures import LaunchFailure, LaunchFailures, OnFailures
from karpool.cluster.market.fleet_bill import LaunchBilling
from karpool.cluster.nodes.expected import ExpectedNode
from karpool.cluster.snapshot import REGION_MISSING, Snapshot
from karpool.estimator.pending_demand import demands, expected_room, without_topology
from karpool.estimator.plugins.interface import UNLIMITED, CapacityPart, Estimate, EstimateCode, no_opinion
from karpool.estimator.providers.incoming_capacity import (
    ProviderState,
    after_others,
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
from karpool.kube.clock import Clock
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import PODS, Resources, add
from karpool.packing.counting.count import MANY, fits, in_play
from karpool.packing.counting.first_fit import NodeFilling
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.dra.driver_templates import DriverTemplates
from karpool.packing.fit_reasons import CLAIMS_UNKNOWN
from karpool.packing.new_nodes.claim_templates import DriversToCome, serve_alike
from karpool.packing.new_nodes.node_plan import PoolCapacity
from karpool.packing.new_nodes.offerings import StockOut
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from karpool.packing.tables.columns import Int64s
from karpool.provisioning.device_shapes import DeviceShapes
from karpool.wire.requests import ComponentSetsRequest

NAME = "karpenter"
NODES_MAX = 1000  # per pool
_FRESH_SECONDS = 1.0  # failures are reused for this long


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What pools may launch. Expensive; depends on neither nodes nor pods, except for drivers' devices."""

    snapshot: Snapshot
    market: object
    stock: tuple[StockOut, ...]
    capacity: NewNodeCapacity

    def is_of(self, snapshot: Snapshot, stock: tuple[StockOut, ...]) -> bool:
        return (
            self.snapshot.pools is snapshot.pools
            and self.snapshot.daemon_overhead is snapshot.daemon_overhead
            and self.snapshot.offerings is snapshot.offerings
            and self.market == snapshot.market.version
            and self.stock == stock
            and serve_alike(self.snapshot.room.dra, snapshot.room.dra)
        )


@dataclass(frozen=True, slots=True)
class _Moment:
    snapshot: Snapshot
    at: float
    state: ProviderState

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether the state is valid for the snapshot; bound pods only matter if pods or nodes wait."""
        before = self.snapshot
        if before.facts is not snapshot.facts or before.waiting is not snapshot.waiting:
            return False
        busy = snapshot.waiting or snapshot.leaving or snapshot.facts.claims or snapshot.facts.starting
        return not busy or before.room is snapshot.room


class KarpenterProvider:
    name = NAME
    aspects = (
        Aspect.POOLS
        | Aspect.NODECLAIMS
        | Aspect.DAEMONS
        | Aspect.STOCK
        | Aspect.WAITING
        | Aspect.OVERLAYS
        | Aspect.BUFFERS
        | Aspect.DRA
    )

    def __init__(
        self,
        clock: Clock,
        failures: LaunchFailures | None = None,
        *,
        nodes_max: int = NODES_MAX,
        shapes: DeviceShapes | None = None,
    ) -> None:
        """`failures` are those of the `Cluster` whose snapshots are used."""
        self.failures = failures if failures is not None else LaunchFailures()
        self.on_failures: list[OnFailures] = []
        self._clock = clock
        self._nodes_max = nodes_max
        self._new: _Compiled | None = None
        self._trying: _Compiled | None = None  # including what may be tried again
        self._moment: _Moment | None = None
        self._told: dict[tuple[str, Any], LaunchFailure] = {}
        self._templates = DriverTemplates(shapes)  # also of removed nodes

    # Answers

    def estimate(self, question: EstimateQuestion) -> Estimate:
        return self._unless_unknown(question, self.plan(question, None))

    def plan(self, question: EstimateQuestion, wanted: int | None) -> Estimate:
        """Like `estimate`; with `wanted`, no more than needed for that number besides existing nodes."""
        snapshot = question.snapshot
        if _is_without_karpenter(snapshot):
            return no_opinion("karpenter has no pools")
        shape = getattr(question.request, "shape", PodShape())
        moment = self._after_others(question, without_topology(shape))
        if question.topology and in_play(question.room, shape) and question.existing <= EXISTING_MAX:
            stage = self._stage(snapshot, moment)
            parts = [*packed(stage, question, shape, wanted), *self._failed(snapshot, moment)]
        else:
            parts = self._counted(question, moment, without_topology(shape), wanted)
        if moment.probe is not None:
            parts = self._with_probe(snapshot, parts, moment, without_topology(shape), wanted)
        total = sum(part.amount for part in parts)
        return Estimate(min(total, UNLIMITED), reasons=_remarks(snapshot), parts=tuple(parts))

    def estimate_components(self, question: EstimateQuestion) -> Estimate:
        if not isinstance(question.request, ComponentSetsRequest):
            return no_opinion("karpenter was asked for no components")
        snapshot = question.snapshot
        if _is_without_karpenter(snapshot):
            return no_opinion("karpenter has no pools")
        moment = self._after_others(question)
        groups = [
            Group(without_topology(component.shape), component.replicas)
            for component in question.request.components
            if component.replicas
        ]
        if not groups:
            return no_opinion("no component has replicas")
        sets = sets_that_fit(self._stage(snapshot, moment), question, groups)
        if not sets and moment.probe is not None:
            sets = sets_that_fit(self._stage(snapshot, replace(moment, plan=moment.probe)), question, groups)
        reasons = () if sets else ("no complete set fits on nodes that are coming or could be launched",)
        parts = (CapacityPart(self.name, sets, reasons=reasons),)
        return self._unless_unknown(question, Estimate(sets, parts=parts, reasons=_remarks(snapshot)))

    def _unless_unknown(self, question: EstimateQuestion, estimate: Estimate) -> Estimate:
        """If the region, or the devices of some types, are unknown, the answer is unknown instead of none."""
        if estimate.value:
            return estimate
        if question.snapshot.region_is_missing:
            return Estimate(0, EstimateCode.UNKNOWN, estimate.reasons)
        new = self.moment(question.snapshot).new
        if question.existing or not any(map(new.is_unclear_for, question.shapes)):
            return estimate
        reasons = (*estimate.reasons, f"karpenter: {CLAIMS_UNKNOWN}")
        return replace(estimate, code=EstimateCode.UNKNOWN, reasons=reasons)

    def ceiling(self, snapshot: Snapshot) -> Resources:
        """Of every resource, the upper bound for coming and launchable nodes."""
        moment, now = self.moment(snapshot), self._clock.now()
        skip = {*moment.failed, *self.failures.probed_pools(now)}
        total = moment.new.ceiling(snapshot.usage, nodes_max=self._nodes_max, skip=skip)
        if moment.probe is not None and self._trying is not None:
            add(total, self._trying.capacity.ceiling(snapshot.usage, nodes_max=1, skip=moment.failed))
        is_new = np.array([not node.twin for node in moment.coming], dtype=np.bool_)
        rows = moment.rows
        add(total, {name: int(rows.free(name)[is_new].sum()) for name in (*rows.resources, PODS)})
        return total

    def failing(self) -> list[LaunchFailure]:
        """Pools and offerings that currently do not count."""
        return self.failures.current(self._clock.now())

    # State

    def moment(self, snapshot: Snapshot) -> ProviderState:
        """The state for the snapshot; cached for a second unless an input changes."""
        now, moment = self._clock.now(), self._moment
        if moment is None or not moment.is_of(snapshot) or not 0 <= now - moment.at < _FRESH_SECONDS:
            moment = self._moment = _Moment(snapshot, now, self._look(snapshot, now))
        return moment.state

    def _look(self, snapshot: Snapshot, now: float) -> ProviderState:
        probed_offers = self.failures.probed_offers(now)
        stock = self.failures.stock_outs(now)
        new = self._new = self._compiled(snapshot, (*stock, *probed_offers), self._new)
        coming, pending = snapshot.expected(), demands(snapshot, snapshot.leaving, now)
        room = expected_room(snapshot, [node.row for node in coming], self._templates)
        filling = NodeFilling(room, topology=False)
        plan, failed, probed_pools = serve_pending(
            new.capacity,
            filling,
            snapshot.usage,
            pending,
            self.failures,
            now=now,
            nodes_max=self._nodes_max,
        )
        probe = None
        if probed_pools or probed_offers:
            trying = self._trying = self._compiled(snapshot, stock, self._trying)
            probe = trying.capacity.plan(snapshot.usage, nodes_max=1, skip=failed)
            for demand in pending:  # pending pods try first
                probe.place(demand.shape, demand.pods)
        self._tell(now)
        launched = [node for node in coming if node.launched]
        left = filling.snapshot()
        rows = left.without([node.row.name for node in coming if not node.launched])
        hoped = left.without([node.row.name for node in launched])
        return ProviderState(new.capacity, launched, rows, hoped, plan, failed, probe=probe)

    def _compiled(
        self, snapshot: Snapshot, stock: tuple[StockOut, ...], latest: "_Compiled | None"
    ) -> "_Compiled":
        if latest is not None and latest.is_of(snapshot, stock):
            return latest
        new = NewNodeCapacity(
            list(snapshot.pools.values()),
            snapshot.offerings,
            daemons=tuple(snapshot.daemons.values()),
            unavailable=stock,
            drivers=DriversToCome(snapshot.room, self._templates),
        )
        return _Compiled(snapshot, snapshot.market.version, stock, new)

    def _stage(self, snapshot: Snapshot, moment: ProviderState) -> PackedCapacityInput:
        daemons = tuple(snapshot.daemons.values())
        now = self._clock.now()
        stock = (*self.failures.stock_outs(now), *self.failures.probed_offers(now))
        return PackedCapacityInput(self.name, moment, snapshot.offerings, daemons, stock, self._nodes_max)

    def _after_others(self, question: EstimateQuestion, asked: PodShape | None = None) -> ProviderState:
        moment, buffers = self.moment(question.snapshot), question.displaced_buffers
        if not question.assumed and not buffers:
            return moment
        return after_others(moment, question.deduction, question.promised, buffers, asked)

    def _tell(self, now: float) -> None:
        current = {
            (failure.pool, failure.offer or failure.cause): failure for failure in self.failures.current(now)
        }
        begun = [told for key, told in current.items() if key not in self._told]
        ended = [told for key, told in self._told.items() if key not in current]
        self._told = current
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
        unlimited = {pool.name for pool in moment.new.pools if not pool.limits}
        billing = question.snapshot.market.launch_billing()
        parts += (self._part(capacity, capacity.pool in unlimited, billing) for capacity in potential)
        return [*parts, *self._failed(question.snapshot, moment)]

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
        for node, amount in zip(coming, amounts.tolist(), strict=True):
            if amount:
                by_pool[node.pool] = by_pool.get(node.pool, 0) + amount
        return [
            CapacityPart(in_flight(self.name, pool), min(amount, UNLIMITED))
            for pool, amount in by_pool.items()
        ]

    def _part(self, potential: PoolCapacity, is_unlimited: bool, billing: LaunchBilling) -> CapacityPart:
        cost = billing.cost(potential.pool, ((run.nodes, run.choice) for run in potential.runs))
        return CapacityPart(
            f"{self.name}/{potential.pool}",
            min(potential.replicas, UNLIMITED),
            nodes=potential.nodes,
            instance_types=potential.instance_types[:SHOWN_TYPES],
            price_per_hour=cost.per_hour,
            list_price_per_hour=cost.list_per_hour,
            reasons=tuple(refusal.detail for refusal in potential.refusals[:SHOWN_REASONS]),
            may_pass=any(infeasible.resolvable for infeasible in potential.refusals),
            is_unlimited=is_unlimited,
        )

    def _with_probe(
        self,
        snapshot: Snapshot,
        parts: Sequence[CapacityPart],
        moment: ProviderState,
        shape: PodShape,
        wanted: int | None,
    ) -> list[CapacityPart]:
        """Add one node of pools that offer nothing else for the shape, to test whether they deliver again."""
        assert moment.probe is not None
        if wanted is not None:
            wanted = max(0, wanted - sum(part.amount for part in parts))
        potential = moment.probe.capacity(shape, wanted=wanted, ahead=moment.ahead)
        billing = snapshot.market.launch_billing()
        offered = (self._part(capacity, False, billing) for capacity in potential)
        probes = {part.name: part for part in offered if part.amount}
        tried = [part if part.amount else probes.pop(part.name, part) for part in parts]
        serving = {part.name for part in parts if part.amount}
        return [*tried, *(part for name, part in probes.items() if name not in serving)]

    def _failed(self, snapshot: Snapshot, moment: ProviderState) -> list[CapacityPart]:
        failures = [
            CapacityPart(
                f"{self.name}/{name}", 0, reasons=(f"does not count at the moment: {failure}",), may_pass=True
            )
            for name, failure in moment.failed.items()
        ]
        failures += (
            CapacityPart(f"{self.name}/{name}", 0, reasons=(why,))
            for name, why in snapshot.broken_pools.items()
        )
        return failures


def _is_without_karpenter(snapshot: Snapshot) -> bool:
    nothing_comes = not snapshot.facts.claims and not snapshot.facts.starting
    return not snapshot.pools and not snapshot.broken_pools and nothing_comes


def _remarks(snapshot: Snapshot) -> tuple[str, ...]:
    missing = (f"karpenter: {REGION_MISSING}",) if snapshot.region_is_missing else ()
    return (*missing, *(f"not deducted: {buffer.problem}" for buffer in snapshot.buffers.unclear))


def _without_twins(
    amounts: Int64s, question: EstimateQuestion, coming: Sequence[ExpectedNode], shape: PodShape
) -> Int64s:
    """The amounts without coming nodes that already count as existing nodes."""
    existing = fits(question.room, shape)
    own = np.zeros_like(amounts)
    for index, node in enumerate(coming):
        at = question.room.find(node.twin) if node.twin else None
        if at is not None:
            own[index] = existing[at]
    left: Int64s = np.maximum(amounts - own, 0)
    return left
