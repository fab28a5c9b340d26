"""What the allocator gives can be given, and columns of devices count what the search finds."""

from itertools import combinations, product
from typing import Any

import pytest

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.dra.claim import EXACT_COUNT, AllocatedDevice, DeviceRequest
from karpool.model.dra.device import DeviceId, DraDevice
from karpool.model.dra.selector import SelectorError
from karpool.model.dra.wire import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod_shape import ClaimReference, PodShape
from karpool.packing.claim_room import claim_room
from karpool.packing.dra.counting import count_on, count_over
from karpool.packing.dra.outcome import DraStatus
from karpool.packing.dra.pod_claims import DraState, demand_of_shape, place_pod
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement, Room
from tests.packing.random_dra import world


def put(state: ClusterRoom, kind: type[Any], raw: dict[str, Any]) -> None:
    obj = decode(raw, kind)
    state.put_dra(kind.__name__, ObjectKey(obj.metadata.namespace, obj.name), obj)


def built(seed: int) -> tuple[Room, PodShape]:
    one = world(seed)
    state = ClusterRoom(dra=True)
    for node in one["nodes"]:
        labels = node["metadata"]["labels"]
        state.put_node(NodeRow(node["metadata"]["name"], labels, (), {"cpu": 64_000, "pods": 110}))
    for raw in one["slices"]:
        put(state, ResourceSlice, raw)
    for raw in one["classes"]:
        put(state, DeviceClass, raw)
    for raw in one["allocated"]:
        put(state, ResourceClaim, raw)
    references = []
    for raw in one["claims"]:
        put(state, ResourceClaimTemplate, {"metadata": raw["metadata"], "spec": {"spec": raw["spec"]}})
        references.append(ClaimReference(raw["metadata"]["name"], template=raw["metadata"]["name"]))
    shape = PodShape((("cpu", 100),), namespace="default", resource_claims=tuple(references))
    return state.snapshot(), shape


SEEDS = range(5000, 5200)


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_count_what_the_search_finds(seed: int) -> None:
    room, shape = built(seed)
    assert room.dra is not None

    def again(state: Any) -> Any:
        return demand_of_shape(state, shape)

    counts = claim_room(room, shape)
    nodes = [room.dra_node(row) for row in range(room.n)]
    if room.dra.stock.slices.reaches_beyond_nodes:
        views = [nodes[row] for row in room.order.tolist()]
        total = count_over(room.dra, again, views, 10_000)
        assert int(counts.sum()) == total.pods if total.pods < 256 else counts.sum() >= 256
    else:
        assert counts.tolist() == [count_on(room.dra, again, node).pods for node in nodes]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_given_is_free_and_given_once(seed: int) -> None:
    room, shape = built(seed)
    assert room.dra is not None
    held = room.dra.held
    for row in range(room.n):
        placed = place_pod(room.dra, demand_of_shape(room.dra, shape), room.dra_node(row))
        rows = [device for allocation in placed.allocated.values() for device in allocation.devices]
        whole = [device.id for device in rows if device.share is None and not device.admin_access]
        assert len(whole) == len(set(whole))
        assert not held.whole & set(whole)
        if placed.fits and (limit := left_over(room, row, rows)) is not None:
            assert limit >= 0
        # One more such pod is deducted when it is supposed to be there.
        if placed.fits and whole:
            supposed = room.minus([PodPlacement(row, shape)]).dra
            assert supposed is not None
            assert set(whole) <= supposed.held.whole


def left_over(room: Room, row: int, given: list[AllocatedDevice]) -> int | None:
    """The least that is left of a counter once these devices are taken; None without counters."""
    assert room.dra is not None
    least: int | None = None
    taken = {device.id for device in given}
    for pool in room.dra.stock.slices.pools_of(room.dra_node(row)):
        left = pool.counters_left(room.dra.held)
        already = min(left.values(), default=0)
        for device, _ in pool.candidates:
            if device.id in taken and device.id not in room.dra.held:
                for use in device.counters:
                    for counter, amount in use.counters:
                        left[use.counter_set, counter] -= amount
        if left and already >= 0:
            least = min(left.values()) if least is None else min(least, *left.values())
    return least


@pytest.mark.parametrize("seed", range(6000, 6150))
def test_a_twin_that_tries_everything_finds_no_more(seed: int) -> None:
    """Where claims ask for whole devices by selectors alone, every choice of devices is tried."""
    room, shape = built(seed)
    assert room.dra is not None
    state = room.dra
    demand = demand_of_shape(state, shape)
    requests = [request for claim in demand.claims for request in claim.spec.all_requests()]
    simple = all(
        request.mode == EXACT_COUNT
        and not request.parent
        and request.capacity is None
        and not request.admin_access
        for request in requests
    ) and not any(claim.spec.constraints for claim in demand.claims)
    if not simple:
        return
    for row in range(room.n):
        node = room.dra_node(row)
        outcome = place_pod(state, demand, node).outcome
        pools = [pool for pool in state.stock.slices.pools_of(node) if pool.is_usable]
        devices = [device for pool in pools for device, _ in pool.candidates]
        per_device = any(slice_.per_device for pool in pools for slice_ in pool.slices)
        odd = any(device.shareable or device.counters or device.taints for device in devices) or per_device
        if odd or outcome.status is DraStatus.ERROR:
            continue
        try:
            choices = [choices_of(state, request, devices) for request in requests]
        except SelectorError:
            continue  # on a device that the search has not reached
        possible = any(
            len({device for part in whole for device in part}) == sum(map(len, whole))
            for whole in product(*choices)
        )
        assert outcome.fits is possible


def choices_of(
    state: DraState, request: DeviceRequest, devices: list[DraDevice]
) -> list[tuple[DeviceId, ...]]:
    texts = (*state.stock.classes[request.device_class].selectors, *request.selectors)
    fitting = [
        device.id
        for device in devices
        if device.id not in state.held.whole
        and all(state.stock.memo.matches(str(text), device) for text in texts)
    ]
    return list(combinations(fitting, request.count))
