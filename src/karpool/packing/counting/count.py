"""How many pods of one shape fit on the existing nodes.

Without topology the answer is Karmada's: the sum of the room of all nodes that pass the filters. With
topology spread or inter-pod affinity, of the shape or of pods already placed, it is the number that a
scheduler reaches by placing one pod after another, each on the first allowed node in order that has room. In
both cases the counted pods can be placed.
"""

from dataclasses import dataclass

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.quantity import INT64_MAX
from karpool.packing.claim_room import asks_drivers, claim_room, free_beside_drivers
from karpool.packing.counting.spread_replicas import spread_replicas
from karpool.packing.device_room import device_room
from karpool.packing.feasibility import feasible
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import Room
from karpool.packing.topology.topology import Topology

# Cap per node in sums; more pods than any kubelet runs.
MANY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FitCount:
    """`total` is exact, however large; `per_node` is aligned with the nodes of the snapshot."""

    total: int
    per_node: Int64s


def count(snapshot: Room, shape: PodShape, *, limit: int | None = None, topology: bool = True) -> FitCount:
    """Count the pods of a shape that fit, up to `limit`.

    `topology=False` ignores other pods, as Karmada does. The cost is O(nodes) without topology; otherwise see
    `spread_replicas`.
    """
    per_node = fits(snapshot, shape)
    if topology and in_play(snapshot, shape):
        per_node = np.minimum(per_node, MANY)
        per_node = spread_replicas(Topology(snapshot), shape, per_node, snapshot.order, limit)
    total = exact_sum(per_node)
    if limit is not None and total > limit:
        per_node = _first(per_node, snapshot.order, max(limit, 0))
        total = max(limit, 0)
    return FitCount(total, per_node)


def in_play(snapshot: Room, shape: PodShape) -> bool:
    """Whether topology affects a shape: by its own constraints, or by the anti-affinity of another pod."""
    if shape.has_topology:
        return True
    if not snapshot.shapes.where("repels", _repels).any():
        return False
    return any(True for _ in Topology(snapshot).rules(shape).all)


def _repels(shape: PodShape) -> bool:
    return bool(shape.anti_affinity)


def _first(per_node: Int64s, order: Int64s, limit: int) -> Int64s:
    """Fill the nodes in order until `limit` pods are placed."""
    capped = np.minimum(per_node[order], limit)
    before = 0
    taken = np.zeros_like(per_node)
    for row, pods in zip(order.tolist(), capped.tolist(), strict=True):
        if before >= limit:
            break
        taken[row] = min(pods, limit - before)
        before += pods
    return taken


def room_for(snapshot: Room, shape: PodShape) -> Int64s:
    """Return how many pods fit on each node by resources, DRA devices aside: Karmada's MaxDivided."""
    room = snapshot.slots
    for resource, units in shape.requests:
        room = np.minimum(room, free_beside_drivers(snapshot, resource) // units)
    if shape.host_ports:
        room = np.minimum(room, 1)
    if shape.devices is not None:
        room = np.minimum(room, device_room(snapshot, shape.devices))
    return room


def fits(snapshot: Room, shape: PodShape) -> Int64s:
    """Return how many pods fit on each node that passes the filters, ignoring topology."""
    # A product, because `where` takes six times as long.
    room: Int64s = room_for(snapshot, shape) * feasible(snapshot, shape)
    return claim_room(snapshot, shape, room) if asks_drivers(snapshot, shape) else room


def open_nodes(snapshot: Room, shape: PodShape) -> Bools:
    """Return the nodes that take one more pod of a shape now, ignoring topology."""
    is_open = fits(snapshot, shape) > 0
    allowed = Topology(snapshot).allowed(shape) if in_play(snapshot, shape) else None
    return is_open if allowed is None else is_open & allowed


def exact_sum(amounts: Int64s) -> int:
    if len(amounts) and int(amounts.max()) > INT64_MAX // len(amounts):
        return sum(amounts.tolist())
    return int(amounts.sum())
