"""How many pods the devices of drivers (DRA) serve on each node, whatever else the pods need.

Devices of one node count for that node: nodes that are alike are worked out once, and where a pod asks for so
many devices that match and nothing else, the count is arithmetic on columns. Devices and claims that several
nodes share are counted pod by pod, each on the first node in order that takes it.
"""

from collections.abc import Iterator

import numpy as np

from karpool.model.dra.claim import EXACT_COUNT, DeviceRequest
from karpool.model.dra.selector import SelectorError, attributes_read
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.taints import untolerated
from karpool.packing.dra.columns import DriverColumns, Read, joined_reads
from karpool.packing.dra.counting import PODS_MAX, Demand, count_on, count_over
from karpool.packing.dra.outcome import DraOutcome
from karpool.packing.dra.pod_claims import DraNode, DraState, PodDemand, demand_of_shape, place_pod
from karpool.packing.feasibility import matches_terms
from karpool.packing.tables.columns import Bools, Int64s, read_only
from karpool.packing.tables.node_table import NodeTable
from karpool.packing.tables.room import Room

# Pods placed one by one where nodes share devices or a claim; what lies beyond is not promised.
SHARED_PODS_MAX = 256
_CLASSES_MAX = 65_536  # counts that are kept while slices stay as they are


def claim_room(room: Room, shape: PodShape) -> Int64s:
    """By node; zeros where devices are not known."""
    if room.dra is None:
        return np.zeros(room.n, dtype=np.int64)
    key = (shape.namespace, shape.resource_claims)
    counts = room.claim_rooms.get(key)
    if counts is None:
        counts = room.claim_rooms[key] = read_only(_counts(room, room.dra, shape))
    return counts


def why_not(room: Room, shape: PodShape, row: int) -> DraOutcome | None:
    """What the devices of one node say to one more such pod; None where devices are not known."""
    if room.dra is None:
        return None
    demand = demand_of_shape(room.dra, shape)
    return place_pod(room.dra, demand, dra_node(room.nodes, row)).outcome


def dra_node(nodes: NodeTable, row: int) -> DraNode:
    return DraNode(nodes.names[row], nodes.labels_of(row), {})


def _counts(room: Room, state: DraState, shape: PodShape) -> Int64s:
    demand = demand_of_shape(state, shape)
    if demand.refused:
        return np.zeros(room.n, dtype=np.int64)
    open_claims = [claim for claim in demand.claims if claim.allocation is None]
    open_nodes = np.ones(room.n, dtype=np.bool_)
    for claim in demand.claims:
        if claim.allocation is not None and claim.allocation.node_terms is not None:
            open_nodes &= matches_terms(room.nodes, claim.allocation.node_terms)
    if not open_claims:
        return np.where(open_nodes, PODS_MAX, 0)
    if state.stock.slices.reaches_beyond_nodes or any(claim.key for claim in open_claims):
        return _one_by_one(room, state, shape, open_nodes)
    columns = state.stock.columns
    by_node = _arithmetic(state, columns, demand)
    if by_node is None:
        by_node = _by_class(room, state, columns, demand, lambda now: demand_of_shape(now, shape))
    # Nodes without slices have no devices: position -1 is theirs.
    with_none = np.append(by_node, 0)
    return np.where(open_nodes, with_none[_positions(room.nodes, columns)], 0)


def _positions(nodes: NodeTable, columns: DriverColumns) -> Int64s:
    def compute(table: NodeTable) -> Int64s:
        return np.array([columns.node_of.get(name, -1) for name in table.names], dtype=np.int64)

    return nodes.per_node(("devices of drivers", id(columns)), compute)


def _requests(demand: PodDemand) -> Iterator[DeviceRequest]:
    for claim in demand.claims:
        if claim.allocation is None:
            yield from claim.spec.all_requests()


def _reads(state: DraState, demand: PodDemand) -> Read:
    """Attributes on which the answer depends."""
    constraints = frozenset(
        constraint.attribute.rpartition("/")[2]
        for claim in demand.claims
        for constraint in claim.spec.constraints
    )
    texts = (
        text
        for request in _requests(demand)
        for text in (*state.stock.classes[request.device_class].selectors, *request.selectors)
        if text is not None
    )
    return joined_reads((constraints, *map(attributes_read, texts)))


def _arithmetic(state: DraState, columns: DriverColumns, demand: PodDemand) -> Int64s | None:
    """Where one request for whole devices is all there is; None where it takes a search."""
    requests = list(_requests(demand))
    constrained = any(claim.spec.constraints for claim in demand.claims)
    if len(requests) != 1 or constrained or len([c for c in demand.claims if c.allocation is None]) != 1:
        return None
    (request,) = requests
    plain = request.mode == EXACT_COUNT and not request.parent and request.capacity is None
    if not plain or request.admin_access is not None or not 0 < request.count <= PODS_MAX // 2:
        return None
    codes, samples = columns.profiles(_reads(state, demand))
    texts = (*state.stock.classes[request.device_class].selectors, *request.selectors)
    fits = np.zeros(len(samples), dtype=np.bool_)
    try:
        for number, device in enumerate(samples):
            policies = any(capacity.policy is not None for _, capacity in device.capacity)
            if device.shareable or device.counters or policies:
                return None
            fits[number] = (
                None not in texts
                and all(state.stock.memo.matches(str(text), device) for text in texts)
                and (
                    not state.stock.features.taints or untolerated(device.taints, request.tolerations) is None
                )
                and (state.stock.features.binding_conditions or not device.binding_conditions)
            )
    except SelectorError:
        return None  # which of the nodes meets it, and when, takes the search
    usable: Bools = fits[codes] & ~columns.held(state.held)
    return columns.per_node(usable) // request.count


def _by_class(
    room: Room, state: DraState, columns: DriverColumns, demand: PodDemand, again: Demand
) -> Int64s:
    read = _reads(state, demand)
    classes = columns.classes(read, state.held)
    asked = (read, tuple(claim.spec for claim in demand.claims if claim.allocation is None))
    names = list(columns.node_of)
    counts = np.zeros(len(classes.samples), dtype=np.int64)
    if len(columns.class_counts) > _CLASSES_MAX:
        columns.class_counts.clear()
    for number, node in enumerate(classes.samples):
        key = (asked, classes.keys[number])
        pods = columns.class_counts.get(key)
        if pods is None:
            row = room.find(names[node])
            view = DraNode(names[node], {}, {}) if row is None else dra_node(room.nodes, row)
            pods = columns.class_counts[key] = count_on(state, again, view).pods
        counts[number] = pods
    by_node: Int64s = counts[classes.numbers]
    return by_node


def _one_by_one(room: Room, state: DraState, shape: PodShape, open_nodes: Bools) -> Int64s:
    rows = [row for row in room.order.tolist() if open_nodes[row]]
    views = [dra_node(room.nodes, row) for row in rows]
    total = count_over(state, lambda now: demand_of_shape(now, shape), views, SHARED_PODS_MAX)
    counts = np.zeros(room.n, dtype=np.int64)
    counts[rows] = total.per_node
    return counts
