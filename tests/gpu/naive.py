"""The allocator's filters and placement as plain loops, one device at a time."""

import math
from collections import Counter, defaultdict

from karpool.gpu.strategies.strategy import COMPACT_FIRST, LOW_LOAD_FIRST
from karpool.model.devices.amounts import NOTHING


def candidates(devices, request, policy):
    """Names of devices that can take the request, before the question of the same node."""
    return [device for device in devices if device.pool == request.pool and can_take(device, request, policy)]


def can_take(device, request, policy):
    mode = request.isolation
    if policy == "Dynamic":
        if device.isolation_policy != "Dynamic" or device.isolation_conflict:
            return False
        if device.active_isolation_mode not in ("", mode):
            return False
    else:
        if device.isolation_policy not in ("", "Static"):
            return False
        if mode != "shared" and device.isolation_mode not in ("", mode):
            return False
    if device.phase != "Running" or device.used_by not in ("", "tensor-fusion"):
        return False
    if request.indices and device.index not in request.indices:
        return False
    needed = {"soft": "SupportsSoftIsolation", "hard": "SupportsHardIsolation"}.get(mode)
    if needed and device.capabilities is not None and not device.capabilities.get(needed):
        return False
    if mode == "shared" and device.available != device.capacity:
        return False
    if not device.available.covers(request.request.on(device.capacity)):
        return False
    return (not request.model or device.model == request.model) and (
        not request.vendor or device.vendor == request.vendor
    )


def on_one_node(found, count):
    if count <= 1:
        return found
    per_node = Counter(device.node for device in found if device.node)
    return [device for device in found if device.node and per_node[device.node] >= count]


def score(device, full):
    def percent(left, capacity):
        free = 100 * left / capacity if capacity else 0.0
        return 100 - free if full else free

    left, capacity = device.available or NOTHING, device.capacity
    weighed = 0.7 * percent(left.vram_bytes, capacity.vram_bytes) + 0.3 * percent(
        left.tflops_milli, capacity.tflops_milli
    )
    return min(100, max(0, math.floor(weighed + 0.5)))


def chosen(devices, found, request, mode):
    """Best node by the average of all its devices, then the best devices; names break ties."""
    node_full, device_full = mode != LOW_LOAD_FIRST, mode == COMPACT_FIRST
    in_node, of_node = defaultdict(list), defaultdict(list)
    for device in found:
        in_node[device.node].append(device)
    for device in devices:
        of_node[device.node].append(device)

    def average(node):
        scores = [score(each, node_full) // (4 if each.phase == "Pending" else 1) for each in of_node[node]]
        return sum(scores) // len(scores)

    nodes = [node for node in in_node if node and len(in_node[node]) >= request.count]
    if not nodes:
        return None
    best = min(nodes, key=lambda node: (-average(node), node))
    ranked = sorted(in_node[best], key=lambda device: (-score(device, device_full), device.name))
    return [device.name for device in ranked[: request.count]]
