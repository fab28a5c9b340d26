"""How many pods the DRA devices of each node can serve.

Devices of one node count for that node only. Identical nodes are computed once, and if a pod asks only for a
number of matching devices, the count is arithmetic on columns. Devices and claims that several nodes share
are counted pod by pod, each on the first node in order that takes it. Extended resources that a device class
offers are DRA devices on every node without a device plugin for them.
"""

from collections.abc import Iterator

import numpy as np

from karpool.model.dra.claim import EXACT_COUNT, DeviceRequest
from karpool.model.dra.selector import SelectorError, attributes_read
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.quantity import INT64_MAX
from karpool.model.taints import untolerated
from karpool.packing.dra.allocator import RESULTS_MAX
from karpool.packing.dra.columns import DriverColumns, Read, joined_reads
from karpool.packing.dra.counting import count_on, count_over
from karpool.packing.dra.extended_resources import CLAIM_NAME, extended_claim
from karpool.packing.dra.outcome import DraOutcome
from karpool.packing.dra.pod_claims import (
    DraNode,
    DraState,
    PodClaim,
    PodDemand,
    demand_of_shape,
    place_pod,
    served_by_drivers,
)
from karpool.packing.dra.stock import DeviceStock
from karpool.packing.feasibility import matches_terms
from karpool.packing.tables.columns import Bools, Int64s, read_only
from karpool.packing.tables.node_table import NodeTable
from karpool.packing.tables.room import Room

# Bounds the work where nodes share devices or a claim, because pods are then placed one by one.
SHARED_PODS_MAX = 256
RESERVATIONS_MAX = 256  # limit of the API for one claim
_CLASSES_MAX = 65_536  # counts cached while the slices do not change


def asks_drivers(room: Room, shape: PodShape) -> bool:
    """Whether a shape needs DRA devices."""
    return bool(shape.resource_claims or served_by_drivers(room.dra, shape))


def claim_room(room: Room, shape: PodShape, caps: Int64s | None = None) -> Int64s:
    """Return by node how many pods get devices; zeros if devices are unknown.

    `caps` is the number of pods that each node has room for otherwise.
    """
    if room.dra is None:
        return np.zeros(room.n, dtype=np.int64)
    demand = demand_of_shape(room.dra, shape)
    if demand.refused:
        return np.zeros(room.n, dtype=np.int64)
    shared = _is_shared(room.dra, demand)
    # Where nodes share devices, the count depends on `caps`: pods take the first nodes that have room.
    seen = caps.tobytes() if shared and caps is not None else b""
    key = (shape.namespace, shape.resource_claims, tuple(demand.extended.items()), demand.containers, seen)
    counts = room.claim_rooms.get(key)
    if counts is None:
        if shared:
            counts = _one_by_one(room, room.dra, shape, caps)
        else:
            counts = _counts(room, room.dra, shape, demand)
        room.claim_rooms[key] = read_only(counts)
    return counts if caps is None else np.minimum(counts, caps)


def takes_one(room: Room, shape: PodShape) -> Bools:
    """Return the nodes with devices for one pod of a shape, each node considered alone."""
    if room.dra is None:
        return np.full(room.n, not shape.resource_claims)
    if not shares_devices(room, shape):
        return claim_room(room, shape) > 0
    demand = demand_of_shape(room.dra, shape)
    views = (room.dra_node(row, demand.extended) for row in range(room.n))
    return np.array([place_pod(room.dra, demand, view).fits for view in views], dtype=np.bool_)


def shares_devices(room: Room, shape: PodShape) -> bool:
    """Whether a pod on one node may take a device that the next pod could have got on another node."""
    return room.dra is not None and _is_shared(room.dra, demand_of_shape(room.dra, shape))


def free_beside_drivers(room: Room, resource: str) -> Int64s:
    """Return what is left of a resource; unlimited on nodes whose drivers serve it (see `claim_room`)."""
    free = room.free(resource)
    if room.dra is None or resource not in room.dra.offered:
        return free
    return np.where(room.allocatable(resource) > 0, free, INT64_MAX)


def why_not(room: Room, shape: PodShape, row: int) -> DraOutcome | None:
    """Return the allocator's outcome for one more pod on a node; None if devices are unknown."""
    if room.dra is None:
        return None
    demand = demand_of_shape(room.dra, shape)
    return place_pod(room.dra, demand, room.dra_node(row, demand.extended)).outcome


def _is_shared(state: DraState, demand: PodDemand) -> bool:
    """Whether pods on different nodes compete: for a claim of several pods or a device of several nodes."""
    claims = [claim for claim in demand.claims if claim.allocation is None]
    if any(claim.key for claim in claims):
        return True
    if not state.stock.slices.reaches_beyond_nodes or not (claims or demand.extended):
        return False
    requests = [request for claim in claims for request in claim.spec.all_requests()]
    resources = [resource for resource in demand.extended if resource in state.offered]
    extended, _ = extended_claim(demand.containers, resources, state.offered)
    return any(_may_share(state.stock, request) for request in (*requests, *extended.all_requests()))


def _may_share(stock: DeviceStock, request: DeviceRequest) -> bool:
    """Whether a device that several nodes share may serve a request or make its selector fail."""
    devices = stock.slices.shared_devices
    texts = (*stock.classes[request.device_class].selectors, *request.selectors)
    if devices is None or request.mode != EXACT_COUNT or None in texts:
        return True
    try:
        return any(all(stock.memo.matches(str(text), device) for text in texts) for device in devices)
    except SelectorError:
        return True  # a failing selector ends the search on every node that reaches it first


def _counts(room: Room, state: DraState, shape: PodShape, demand: PodDemand) -> Int64s:
    """Count pods by node where every device belongs to one node."""
    served = served_by_drivers(state, shape)
    if not served:
        return _of_claims(room, state, demand.claims)
    counts = np.zeros(room.n, dtype=np.int64)
    by_plugin = np.array([room.allocatable(resource) > 0 for resource in served], dtype=np.bool_)
    patterns, numbers = np.unique(by_plugin, axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        drivers = [resource for resource, plugin in zip(served, pattern.tolist(), strict=True) if not plugin]
        claims = demand.claims
        if drivers:
            spec, _ = extended_claim(demand.containers, drivers, state.offered)
            claims = (*claims, PodClaim(CLAIM_NAME, "", spec))
        rows = numbers.reshape(-1) == number
        counts[rows] = _of_claims(room, state, claims)[rows]
    return counts


def _of_claims(room: Room, state: DraState, claims: tuple[PodClaim, ...]) -> Int64s:
    demand = PodDemand(claims)
    open_claims = [claim for claim in demand.claims if claim.allocation is None]
    open_nodes = np.ones(room.n, dtype=np.bool_)
    for claim in demand.claims:
        if claim.allocation is not None and claim.allocation.node_terms is not None:
            open_nodes &= matches_terms(room.nodes, claim.allocation.node_terms)
    if not open_claims:
        # Without claims, device plugins serve these resources, and their columns have the count.
        return np.where(open_nodes, RESERVATIONS_MAX if demand.claims else INT64_MAX, 0)
    columns = state.stock.columns
    by_node = _arithmetic(state, columns, demand)
    if by_node is None:
        by_node = _by_class(room, state, columns, demand)
    # Nodes without slices have no devices: they use position -1.
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
    """Return the attributes that the answer depends on."""
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
    """Count by arithmetic if the pod has one request for whole devices; None if a search is needed."""
    requests = list(_requests(demand))
    constrained = any(claim.spec.constraints for claim in demand.claims)
    if len(requests) != 1 or constrained or len([c for c in demand.claims if c.allocation is None]) != 1:
        return None
    (request,) = requests
    plain = request.mode == EXACT_COUNT and not request.parent and request.capacity is None
    if not plain or request.admin_access is not None or not 0 < request.count <= RESULTS_MAX:
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
        return None  # only the search tells which nodes reach the failing selector
    usable: Bools = fits[codes] & ~columns.held(state.held)
    return columns.per_node(usable) // request.count


def _by_class(room: Room, state: DraState, columns: DriverColumns, demand: PodDemand) -> Int64s:
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
            view = DraNode(names[node], {}, {}) if row is None else room.dra_node(row)
            pods = columns.class_counts[key] = count_on(state, lambda now: demand, view).pods
        counts[number] = pods
    by_node: Int64s = counts[classes.numbers]
    return by_node


def _one_by_one(room: Room, state: DraState, shape: PodShape, caps: Int64s | None) -> Int64s:
    rows = room.order.tolist() if caps is None else [row for row in room.order.tolist() if caps[row] > 0]
    extended = demand_of_shape(state, shape).extended
    views = [room.dra_node(row, extended) for row in rows]
    most = [SHARED_PODS_MAX] * len(rows) if caps is None else caps[rows].tolist()
    total = count_over(state, lambda now: demand_of_shape(now, shape), views, SHARED_PODS_MAX, most)
    counts = np.zeros(room.n, dtype=np.int64)
    counts[rows] = total.per_node
    return counts
