"""Devices that drivers (DRA) would publish on nodes that a pool could launch, by instance type.

Only devices of the node itself count: what several nodes share may be taken by the next one. A claim of
several pods ties them to one node, which nobody has chosen yet: such pods are not planned onto new nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.devices.device import POOL_LABEL
from karpool.model.karpenter.objects import NODEPOOL, CompiledPool
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.kubernetes.pod_shape import ClaimReference, PodShape
from karpool.packing.dra.driver_templates import NEW_NODE, DriverTemplates, node_to_come
from karpool.packing.dra.pod_claims import DraNode, DraState, demand_of_shape, place_pod, with_pod
from karpool.packing.new_nodes.offerings import PoolOfferings
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import Room

_MEMO_LIMIT = 4096
_PODS_MAX = 256  # of one node, as for nodes that are there


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """The claims of one pod."""

    namespace: str
    claims: tuple[ClaimReference, ...]

    def __str__(self) -> str:
        names = (reference.claim or reference.template for reference in self.claims)
        return f"devices of resource claims ({', '.join(names)})"


class DriversToCome:
    """What drivers publish on the nodes that are there, and so would on others of their type."""

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
        """What claims would find on such a node, of its own devices; None: not known."""
        if self.live is None:
            return None
        return self._templates.state_on(self.live, node_to_come(pool, instance_type), shared=False)


class ClaimTemplates:
    """One pool's."""

    def __init__(self, offer: PoolOfferings, drivers: DriversToCome) -> None:
        self._states = [drivers.state_on(offer.pool, instance_type) for instance_type in offer.types]
        labels = {**offer.pool.labels, NODEPOOL: offer.pool.name, POOL_LABEL: offer.pool.name}
        self._node = DraNode(NEW_NODE, labels, {})
        self._held: dict[tuple[ClaimDemand, ...], Bools] = {}

    def holding(self, demands: Iterable[ClaimDemand]) -> Bools:
        """The types whose drivers serve all these pods."""
        key = tuple(demands)
        mask = self._held.get(key)
        if mask is None:
            if len(self._held) >= _MEMO_LIMIT:
                self._held.clear()
            served = [state is not None and self._served(state, key) == len(key) for state in self._states]
            mask = self._held[key] = np.array(served, dtype=np.bool_)
        return mask

    def counts(self, demand: ClaimDemand) -> Int64s:
        """By type: pods with these claims."""
        many = (demand,) * _PODS_MAX
        pods = [0 if state is None else self._served(state, many) for state in self._states]
        return np.array(pods, dtype=np.int64)

    def _served(self, state: DraState, demands: tuple[ClaimDemand, ...]) -> int:
        """How many of them find devices before one does not."""
        for number, demand in enumerate(demands):
            shape = PodShape(namespace=demand.namespace, resource_claims=demand.claims)
            asked = demand_of_shape(state, shape)
            placed = place_pod(state, asked, self._node)
            if not placed.fits or any(claim.key and claim.allocation is None for claim in asked.claims):
                return number
            state = with_pod(state, asked, placed)
        return len(demands)
