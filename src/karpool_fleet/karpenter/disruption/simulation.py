"""Simulates the removal of nodes: whether their pods fit elsewhere, and whether a replacement is cheaper."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.consolidation.methods.replacement_rules import cheaper_types, without_same_types
from karpool.consolidation.policy import prices
from karpool.model.catalogue.catalogue import Offering
from karpool.model.karpenter.objects import CAPACITY_TYPE, INITIALIZED, NODEPOOL, ON_DEMAND, SPOT
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import Requirements, ValueSet
from karpool.packing.new_nodes.pack_result import LaunchOption, PackResult, PendingPod, PlannedNode
from karpool.packing.tables.room import PodPlacement, Room
from karpool_fleet.cloud.cloud import CloudOffer
from karpool_fleet.karpenter.disruption.candidates import DisruptionCandidate
from karpool_fleet.karpenter.lifecycle.marks import is_under_window
from karpool_fleet.karpenter.provisioning.market import LaunchMarket
from karpool_fleet.karpenter.provisioning.provisioner import Provisioner, demand, is_currently_reschedulable
from karpool_fleet.karpenter.shared import Shared

_FILLER = PodShape()


@dataclass(frozen=True)
class DisruptionCommand:
    """A command for some nodes: delete them, or replace them by one new node."""

    candidates: tuple[DisruptionCandidate, ...]
    replacement: PlannedNode | None = None
    placed: Mapping[str, str] | None = None  # pods -> existing rows

    @property
    def decision(self) -> str:
        return "delete" if self.replacement is None else "replace"


@dataclass(frozen=True)
class NoMove:
    reason: str


class Simulator:
    def __init__(self, shared: Shared, provisioner: Provisioner) -> None:
        self._view = shared.view
        self._market = shared.market
        self._clock = shared.context.clock
        self._provisioner = provisioner

    def simulate(self, candidates: Sequence[DisruptionCandidate]) -> PackResult | NoMove:
        view, now = self._view, self._clock.now()
        if any(view.is_leaving(candidate.claim, candidate.node) for candidate in candidates):
            return NoMove("candidate is deleting")
        snapshot = view.snapshot()
        whole = snapshot.room
        pods = demand(snapshot, view, now)
        moved = [pod for candidate in candidates for pod in self._movable(whole, candidate, now)]
        gone = [*view.leaving(), *(disruption_candidate.name for disruption_candidate in candidates)]
        rest = whole.without(gone)
        rest = rest.minus(self._fill_windows(rest, now))
        packing = self._provisioner.pack(rest, [*pods, *moved])
        names = {pod.name for pod in moved}
        left = [unplaced_pod.pod for unplaced_pod in packing.left if unplaced_pod.pod in names]
        starting = [pod for pod, row in packing.placed.items() if pod in names and _is_starting(rest, row)]
        if left or starting:
            shown = ", ".join((left + starting)[:5])
            return NoMove(f"Not all pods would schedule, {shown}")
        return packing

    def buffer_rows(self) -> set[str]:
        """Return the nodes that pods of capacity buffers would use: they are not empty."""
        view = self._view
        snapshot = view.snapshot()
        virtual = snapshot.buffers.shapes
        if not virtual:
            return set()
        pods = demand(snapshot, view, self._clock.now())
        packing = self._provisioner.pack(snapshot.room.without(view.leaving()), pods)
        return {row for pod, row in packing.placed.items() if pod in virtual}

    def _movable(self, snapshot: Room, candidate: DisruptionCandidate, now: float) -> Iterable[PendingPod]:
        row = snapshot.find(candidate.name)
        shapes = snapshot.pods_on(row) if row is not None else {}
        for pod in candidate.pods:
            key = pod.metadata.key
            if key in shapes and is_currently_reschedulable(pod, self._view, now):
                meta = pod.metadata
                shape = snapshot.shapes[shapes[key]]
                yield PendingPod(key, shape, meta.creation_timestamp or "", meta.uid)

    def _fill_windows(self, snapshot: Room, now: float) -> Iterable[PodPlacement]:
        """Fill all slots of nodes inside their own consolidation window: they may not receive pods."""
        for claim in self._view.claims.objects():
            if not is_under_window(claim, self._view.pools.get(claim.pool_name), now):
                continue
            for node in self._view.nodes_of(claim):
                row = snapshot.find(node.name)
                if row is not None and snapshot.slots[row] > 0:
                    yield PodPlacement(row, _FILLER, int(snapshot.slots[row]))

    def consolidate(self, candidates: Sequence[DisruptionCandidate]) -> DisruptionCommand | NoMove:
        packing = self.simulate(candidates)
        if isinstance(packing, NoMove):
            return packing
        if not packing.nodes:
            return DisruptionCommand(tuple(candidates), None, packing.placed)
        if len(packing.nodes) > 1:
            return NoMove(f"Can't remove without creating {len(packing.nodes)} candidates")
        cheaper = self._cheaper(packing.nodes[0], candidates)
        if isinstance(cheaper, NoMove):
            return cheaper
        if len(candidates) > 1:
            cheaper = keep_cheaper_than_same_type(cheaper, candidates)
            if isinstance(cheaper, NoMove):
                return cheaper
        return DisruptionCommand(tuple(candidates), cheaper, packing.placed)

    def _cheaper(
        self, planned: PlannedNode, candidates: Sequence[DisruptionCandidate]
    ) -> PlannedNode | NoMove:
        """Return the replacement with only those types that are cheaper in any case."""
        current = sum(candidate.price for candidate in candidates)
        kinds = planned.requirements.get(CAPACITY_TYPE)
        on_spot = all(disruption_candidate.capacity_type == SPOT for disruption_candidate in candidates)
        may_spot = kinds is None or SPOT in kinds
        if on_spot and may_spot:
            return NoMove("SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node")
        requirements = planned.requirements
        worst = {
            choice.instance_type: worst_launch_price(
                self._market, planned.pool, choice.instance_type, requirements
            )
            for choice in planned.options
        }
        cheaper = cheaper_types(worst, current)
        kept = [choice for choice in planned.options if choice.instance_type in cheaper]
        if not self._has_min_values(requirements, kept):
            return NoMove("Filtering by price: minValues requirement is not met")
        if not kept:
            return NoMove("Can't replace with a cheaper node")
        either = may_spot and (kinds is None or ON_DEMAND in kinds)
        if either and any(_has_spot(self._market, choice.instance_type) for choice in kept):
            # If spot has no stock, the launch must fail rather than buy something more expensive.
            requirements = _pinned(requirements, SPOT)
        return replace(planned, options=tuple(kept), requirements=requirements)

    def _has_min_values(self, wanted: Requirements, kept: Sequence[LaunchOption]) -> bool:
        types = [self._market.catalogue.types[choice.instance_type] for choice in kept]
        for key, values in wanted.items():
            if values.min_values is None:
                continue
            labels = (instance_type.requirements.get(key) for instance_type in types)
            values_left = {
                value for label in labels if label is not None for value in label.values if value in values
            }
            if len(values_left) < values.min_values:
                return False
        return True


def worst_launch_price(
    market: LaunchMarket, pool: str, instance_type: str, wanted: Requirements
) -> float | None:
    """Return the highest price of a launch; None if the type cannot be launched."""
    zones, kinds = wanted.get(ZONE), wanted.get(CAPACITY_TYPE)
    out = market.unavailable.current()

    def can_be_had(offering: Offering) -> bool:
        allowed = (zones is None or offering.zone in zones) and (
            kinds is None or offering.capacity_type in kinds
        )
        return allowed and CloudOffer(instance_type, offering.zone, offering.capacity_type) not in out

    return prices.worst_launch_price(market.type_of(pool, instance_type).offerings, can_be_had)


def keep_cheaper_than_same_type(
    planned: PlannedNode, candidates: Sequence[DisruptionCandidate]
) -> PlannedNode | NoMove:
    """Drop types for which keeping a node of the same type and deleting the others would be better."""
    unknown = float("inf")
    options = [
        (choice.instance_type, unknown if choice.price_per_hour is None else choice.price_per_hour)
        for choice in planned.options
    ]
    sources = [(candidate.type, candidate.price) for candidate in candidates]
    better = {name for name, _ in without_same_types(sources, options)}
    kept = tuple(choice for choice in planned.options if choice.instance_type in better)
    return replace(planned, options=kept) if kept else NoMove("same type")


def _pinned(wanted: Requirements, kind: str) -> Requirements:
    before = wanted.get(CAPACITY_TYPE)
    least = before.min_values if before is not None else None
    return {**wanted, CAPACITY_TYPE: ValueSet(frozenset((kind,)), min_values=least)}


def _has_spot(market: LaunchMarket, instance_type: str) -> bool:
    out = market.unavailable.current()
    return any(
        offering.capacity_type == SPOT
        and offering.available
        and CloudOffer(instance_type, offering.zone, SPOT) not in out
        for offering in market.catalogue.types[instance_type].offerings
    )


def _is_starting(snapshot: Room, row_name: str) -> bool:
    row = snapshot.find(row_name)
    if row is None:
        return False
    labels = snapshot.nodes.labels_of(row)
    return NODEPOOL in labels and labels.get(INITIALIZED) != "true"
