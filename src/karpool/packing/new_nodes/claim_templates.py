"""DRA devices that drivers would publish on the nodes that a pool could launch, by instance type.

Only devices of the node itself count, because shared devices may be gone when the node starts. A claim of
several pods ties them to one node that is not chosen yet, so such pods are not planned onto new nodes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.devices.device import POOL_LABEL
from karpool.model.dra.claim import DraClaim
from karpool.model.karpenter.objects import NODEPOOL, CompiledPool
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.kubernetes.pod_shape import ClaimReference, ContainerAsk, PodShape
from karpool.packing.dra.driver_templates import NEW_NODE, DriverTemplates, NodeToCome, node_to_come
from karpool.packing.dra.pod_claims import DraNode, DraState, demand_of_shape, place_pod, with_pod
from karpool.packing.new_nodes.offerings import MOST, PoolOfferings
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room, snapshot_of

_MEMO_LIMIT = 4096
_PODS_MAX = 256  # per node, as for existing nodes


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """The claims of one pod, and its resources of device classes: a driver serves them if no plugin does."""

    namespace: str
    claims: tuple[ClaimReference, ...]
    resources: tuple[tuple[str, int], ...] = ()
    containers: tuple[ContainerAsk, ...] = ()

    def __str__(self) -> str:
        names = [reference.claim or reference.template for reference in self.claims]
        names += (resource for resource, _ in self.resources)
        return f"devices of resource claims ({', '.join(names)})"

    @property
    def shape(self) -> PodShape:
        """A pod shape that asks for nothing else."""
        return PodShape(
            self.resources,
            namespace=self.namespace,
            resource_claims=self.claims,
            extended_asks=self.containers,
        )

    def is_served_by(self, plugins: Mapping[str, int]) -> bool:
        """Whether device plugins serve everything, so that no driver is needed."""
        return not self.claims and all(plugins.get(resource, 0) > 0 for resource, _ in self.resources)


def claim_demand(shape: PodShape, offered: Collection[str]) -> ClaimDemand | None:
    """Return the DRA demand of a shape, None if it has none. `offered` are resources of device classes."""
    resources = tuple(item for item in shape.requests if item[0] in offered) if offered else ()
    if not shape.resource_claims and not resources:
        return None
    return ClaimDemand(shape.namespace, shape.resource_claims, resources, shape.extended_asks)


class DriversToCome:
    """The devices that drivers publish on existing nodes, as templates for new nodes of the same type."""

    def __init__(self, room: Room, templates: DriverTemplates | None = None) -> None:
        self.live = room.dra
        self._templates = DriverTemplates() if templates is None else templates
        if self.live is not None:
            rows = ((name, room.find(name)) for name in self.live.stock.slices.nodes)
            labelled = [(name, room.nodes.labels_of(row)) for name, row in rows if row is not None]
            self._templates.learn(
                self.live,
                (
                    (name, labels, labels.get(NODEPOOL, ""), labels.get(INSTANCE_TYPE, ""))
                    for name, labels in labelled
                ),
            )

    def state_on(self, pool: CompiledPool, instance_type: InstanceType) -> DraState | None:
        """Return the devices of a new node of this type; None: unknown."""
        if self.live is None:
            return None
        return self._templates.state_on(self.live, node_to_come(pool, instance_type))

    @property
    def offered(self) -> Collection[str]:
        """The extended resources that device classes offer."""
        return () if self.live is None else self.live.offered

    def room_of(self, rows: Sequence[NodeRow], types: Mapping[str, InstanceType]) -> Room:
        """Return a room of new nodes, with the devices that drivers would publish on them."""
        live = self.live
        if live is None or not live.stock.classes:  # without device classes no claim can be allocated
            return snapshot_of(rows, dra=live)
        nodes = {}
        for row in rows:
            name = row.labels.get(INSTANCE_TYPE, "")
            pool = CompiledPool(row.labels.get(NODEPOOL, ""), labels=dict(row.labels))
            is_listed = name in types
            nodes[row.name] = (
                node_to_come(pool, types[name]) if is_listed else NodeToCome(pool.name, name, pool.labels)
            )
        return snapshot_of(rows, dra=self._templates.state_on_all(live, nodes))


def serve_alike(one: DraState | None, other: DraState | None) -> bool:
    """Whether new nodes serve claims the same way in both states; claims owned by a pod are ignored."""
    if one is None or other is None:
        return one is other
    return one is other or (
        one.stock is other.stock and one.templates == other.templates and _lasting(one) == _lasting(other)
    )


def _lasting(state: DraState) -> dict[str, DraClaim]:
    """Return the claims that are not owned by a pod."""
    return {
        key: claim
        for key, claim in state.claims.items()
        if not any(owner.kind == "Pod" and owner.controller for owner in claim.owners)
    }


class ClaimTemplates:
    """The DRA devices of the instance types of one pool."""

    def __init__(self, offer: PoolOfferings, drivers: DriversToCome) -> None:
        labels = {**offer.pool.labels, NODEPOOL: offer.pool.name, POOL_LABEL: offer.pool.name}
        self._types = [
            (
                DraNode(NEW_NODE, labels, instance_type.allocatable),
                drivers.state_on(offer.pool, instance_type),
            )
            for instance_type in offer.types
        ]
        self._held: dict[tuple[ClaimDemand, ...], Bools] = {}

    def holding(self, demands: Iterable[ClaimDemand]) -> Bools:
        """Return the types whose drivers serve all these pods."""
        key = tuple(demands)
        mask = self._held.get(key)
        if mask is None:
            if len(self._held) >= _MEMO_LIMIT:
                self._held.clear()
            served = [_served(node, state, key) == len(key) for node, state in self._types]
            mask = self._held[key] = np.array(served, dtype=np.bool_)
        return mask

    def counts(self, demand: ClaimDemand) -> Int64s:
        """Return by type how many pods with these claims get devices."""
        many = (demand,) * _PODS_MAX
        pods = [
            MOST if demand.is_served_by(node.allocatable) else _served(node, state, many)
            for node, state in self._types
        ]
        return np.array(pods, dtype=np.int64)


def _served(node: DraNode, state: DraState | None, demands: tuple[ClaimDemand, ...]) -> int:
    """Return how many of these pods get devices before one does not."""
    for number, demand in enumerate(demands):
        if demand.is_served_by(node.allocatable):
            continue
        if state is None:
            return number
        asked = demand_of_shape(state, demand.shape)
        placed = place_pod(state, asked, node)
        if not placed.fits or any(claim.key and claim.allocation is None for claim in asked.claims):
            return number
        state = with_pod(state, asked, placed)
    return len(demands)
