"""Every accelerator of a cluster: its model, who allocates it, which pods use how much, and what is free.

Objects that describe devices take precedence; otherwise the node is read as the allocator of its devices
describes it. Kubernetes does not say which device a plugin gave to a pod: like the rest of Karpool, this
module assumes the last devices without shares.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.cluster.aspects import Aspect
from karpool.cluster.devices.device_store import DeviceUse
from karpool.cluster.nodes.node_facts import NodeFacts
from karpool.cluster.snapshot import Snapshot
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.gpu_models import find_model
from karpool.model.devices.inventory import (
    HAMI,
    MIB,
    NVIDIA_PLUGIN,
    VOLCANO,
    DeviceForm,
    DeviceGroup,
    inventory_of,
)
from karpool.model.devices.node_devices import RESOURCES
from karpool.model.dra.claim import AllocatedDevice
from karpool.model.dra.device import DeviceId, DraDevice
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.taints import untolerated
from karpool.packing.dra.pod_claims import DraState
from karpool.packing.dra.pools import BadPlace, DevicePool, NodeView

TENSOR_FUSION, KAI = "tensor-fusion", "kai-scheduler"
# gpu.nvidia.com, gpu.amd.com, gpu.intel.com, gaudi.intel.com, neuron.aws.com, tpu.google.com
_ACCELERATOR_DRIVERS = ("gpu.", "gaudi.", "neuron.", "tpu.")
_DRA = " (DRA)"
_UNCUT = "spx"  # AMD's name for an unpartitioned card
_NANOS = 10**9
_KAI_POOL, _KAI_GROUP = "kai.scheduler/node-pool", "runai-gpu-group"


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A pod and its part of one device: whole units of the plugin, or a share."""

    pod: str
    units: int = 0
    memory_bytes: int = 0
    tflops_milli: int = 0


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device. `free_units` is the number of pods its plugin would still serve; None: unlimited."""

    node: str
    device: str
    model: str
    memory_bytes: int | None
    handed_out_by: str
    form: str
    profile: str = ""
    shareable: bool = False
    resource: str = ""
    holders: tuple[DeviceHolder, ...] = ()
    free_units: int | None = 1
    free_memory_bytes: int | None = None
    unstable: bool = False

    @property
    def is_of_driver(self) -> bool:
        """Whether it is allocated through ResourceClaims."""
        return self.handed_out_by.endswith(_DRA)


Pods = Mapping[str, PodShape]


def accelerators(snapshot: Snapshot) -> tuple[list[Accelerator], list[str]]:
    """Return the devices by node, in the order of the snapshot, and a line for each unreadable object."""
    room = snapshot.room
    offered = {name: room.allocatable(name) for name in room.resources if "/" in name}
    devices: list[Accelerator] = []
    problems: list[str] = []
    if room.dra is None and Aspect.DRA in snapshot.facts.aspects:
        problems.append("DRA devices: cannot tell, because slices, claims or classes cannot be listed")
    claims = _claims_by_device(room.dra)
    for row, state_node in enumerate(snapshot.nodes):
        facts = state_node.node
        if facts is None:
            continue
        allocatable = {name: int(column[row]) for name, column in offered.items() if column[row] > 0}
        inventory = inventory_of(facts.labels, facts.annotations, allocatable)
        if inventory.problem:
            problems.append(f"Node {facts.name}: {inventory.problem}")
        uses = {use.device.name: use for use in snapshot.devices.get(facts.name, ())}
        published = _published(facts, room.dra, problems)
        if not inventory.groups and not uses and not published:
            continue
        pods = {key: room.shapes[shape] for key, shape in room.pods_on(row).items()}
        own = list(_of_node(facts, inventory.groups, uses, pods))
        if own and (untold := _untold_sharers(own, pods)):
            problems.extend(_untold_problem(facts.name, key, pods[key]) for key in untold)
            own = [_closed(device) for device in own]
        devices.extend(own)
        devices.extend(
            _of_driver(facts.name, device, claims, pods, spent=spent) for device, spent in published
        )
    return devices, problems


def _untold_sharers(devices: Sequence[Accelerator], pods: Pods) -> list[str]:
    """Return the pods with a share whose device on the node is unknown."""
    holders = {holder.pod for device in devices for holder in device.holders}
    return sorted(key for key, shape in pods.items() if shape.devices is not None and key not in holders)


def _untold_problem(node: str, pod: str, shape: PodShape) -> str:
    return (
        f"Pod {pod}: which device of Node {node} it holds cannot be told, so none counts as free;"
        f" it asks for {shape.devices}"
    )


def _closed(device: Accelerator) -> Accelerator:
    """Close a whole device, because it may hold an unknown share; MIG and time slices have no shares."""
    if device.form != DeviceForm.WHOLE:
        return device
    return replace(device, free_units=0, free_memory_bytes=None if device.memory_bytes is None else 0)


def _of_node(
    node: NodeFacts, groups: Sequence[DeviceGroup], uses: Mapping[str, DeviceUse], pods: Pods
) -> Iterator[Accelerator]:
    described = [use for use in uses.values() if use.described]
    yield from _described_devices(node.name, described, groups, pods)
    for group in groups:
        if described and group.resource in RESOURCES:
            continue  # the plugin counts the same devices
        if group.handed_out_by in (HAMI, VOLCANO):
            yield from (_registered(node.name, group, name, uses.get(name), pods) for name in group.names)
        else:
            yield from _counted(node, group, uses, pods)


def _described_devices(
    node: str, uses: Sequence[DeviceUse], groups: Sequence[DeviceGroup], pods: Pods
) -> Iterator[Accelerator]:
    """Yield described devices. It is unknown which device of the plugin a pod uses: assume the first."""
    plugin = next((group for group in groups if group.resource in RESOURCES), None)
    holders = [] if plugin is None else sorted(_unit_holders(plugin, pods).items())
    units = deque(key for key, number in holders for _ in range(min(number, len(uses))))
    for use in uses:
        device = _described(node, use, pods)
        if units and device.handed_out_by == NVIDIA_PLUGIN:
            device = replace(device, holders=(*device.holders, DeviceHolder(units.popleft(), 1)))
        yield device


def _described(node: str, use: DeviceUse, pods: Pods) -> Accelerator:
    device = use.device
    memory = device.capacity.vram_bytes if device.capacity is not None else 0
    by_plugin = device.used_by == NVIDIA_PLUGIN
    model = find_model(device.model, memory // MIB)
    return Accelerator(
        node=node,
        device=device.name,
        model=model.name if model is not None else device.model,
        memory_bytes=memory or None,
        handed_out_by=NVIDIA_PLUGIN if by_plugin else TENSOR_FUSION,
        form="whole",
        shareable=not by_plugin,
        holders=_share_holders(use, pods),
        free_units=0 if use.closed else None,
        free_memory_bytes=0 if use.closed else _left(use) if memory else None,
    )


def _left(use: DeviceUse) -> int:
    """Return the free memory, at least 0: pods may use more than there is."""
    return max(use.left.vram_bytes, 0)


def _registered(node: str, group: DeviceGroup, name: str, use: DeviceUse | None, pods: Pods) -> Accelerator:
    """Return a device that a register lists; the writer of the register allocates its shares."""
    blank = _blank(node, group, name)
    if use is None:
        return blank
    holders = _share_holders(use, pods)
    return replace(
        blank,
        holders=holders,
        free_units=0 if use.closed else max((group.sharers_max or 1) - len(holders), 0),
        free_memory_bytes=0 if use.closed else _left(use),
    )


def _counted(
    node: NodeFacts, group: DeviceGroup, uses: Mapping[str, DeviceUse], pods: Pods
) -> Iterator[Accelerator]:
    """Yield devices of which only the number is known: units used by pods, and shares that we allocated."""
    names = [_name(node.name, group, index) for index in range(group.devices)]
    shared = {name: _share_holders(uses[name], pods) for name in names if name in uses}
    taken: dict[str, list[DeviceHolder]] = defaultdict(list)
    left = {name: group.units_per_device for name in names if not shared.get(name)}
    kai_groups = _kai_groups(pods)
    reserved: dict[str, str] = {}  # device, KAI's group
    for key, units in sorted(_unit_holders(group, pods).items()):
        missing = units
        while missing > 0 and left:
            name = next(reversed(left))
            share = min(missing, left[name])
            missing -= share
            left[name] -= share
            if not left[name]:
                del left[name]
            if _is_reservation(pods[key]):
                reserved[name] = dict(pods[key].labels).get(_KAI_GROUP, "")
            else:
                taken[name].append(DeviceHolder(key, share))
    by_kai = _KAI_POOL in node.labels or bool(reserved)
    for name in names:
        blank = _blank(node.name, group, name)
        if by_kai and group.resource in RESOURCES:
            blank = replace(blank, shareable=True)
        if name in reserved:
            yield _shared_by_kai(blank, kai_groups.get(reserved[name], ()))
            continue
        holders = (*shared.get(name, ()), *taken[name])
        yield replace(
            blank,
            holders=holders,
            free_units=left.get(name, 0),
            free_memory_bytes=_free_memory(blank, uses.get(name), holders),
        )


def _free_memory(device: Accelerator, use: DeviceUse | None, holders: Sequence[DeviceHolder]) -> int | None:
    """Return the free memory; None if unknown. A pod with a whole unit uses all of its memory."""
    if device.memory_bytes is None:
        return None
    if any(holder.units for holder in holders):
        return 0
    return _left(use) if use is not None and use.holders else device.memory_bytes


def _share_holders(use: DeviceUse, pods: Pods) -> tuple[DeviceHolder, ...]:
    capacity = use.device.capacity or DeviceAmount(0, 0)
    holders = []
    for key in use.holders:
        demand = pods[key].devices if key in pods else None
        share = demand.share.on(capacity) if demand is not None else DeviceAmount(0, 0)
        holders.append(DeviceHolder(key, 0, share.vram_bytes, share.tflops_milli))
    return tuple(holders)


def _unit_holders(group: DeviceGroup, pods: Pods) -> dict[str, int]:
    units = {key: dict(shape.requests).get(group.resource, 0) for key, shape in pods.items()}
    return {key: number for key, number in units.items() if number > 0}


# Drivers (DRA): devices are in slices, and their users are in claims


def _published(node: NodeFacts, dra: DraState | None, problems: list[str]) -> list[tuple[DraDevice, bool]]:
    """Return the GPUs that a driver publishes for this node alone, and whether their counters are used up.

    A partitioned card is no longer free as a whole.
    """
    if dra is None or not dra.stock.has_devices:
        return []
    try:
        pools = dra.stock.slices.pools_of(NodeView(node.name, node.labels))
    except BadPlace as error:
        problems.append(f"Node {node.name}: {error}")
        return []
    own = {(slice_.driver, slice_.pool) for slice_ in dra.stock.slices.local(node.name)}
    for pool in pools:
        if not pool.is_usable and pool.key in own:
            why = f"invalid: {pool.invalid}" if pool.invalid else "incomplete: its slices are not all there"
            problems.append(f"Node {node.name}: pool {'/'.join(pool.key)} is {why}")
    return [
        (device, _is_spent(device, pool, dra))
        for pool in pools
        if pool.key[0].startswith(_ACCELERATOR_DRIVERS)
        for device, slice_ in pool.candidates
        if (place := device.place if slice_.per_device else slice_.place) is not None
        and place.node == node.name
    ]


def _is_spent(device: DraDevice, pool: DevicePool, dra: DraState) -> bool:
    if not device.counters or device.id in dra.held:
        return False
    left = pool.counters_left(dra.held)
    return any(
        left.get((use.counter_set, counter), 0) < amount
        for use in device.counters
        for counter, amount in use.counters
    )


_Claims = Mapping[DeviceId, Sequence[tuple[str, AllocatedDevice]]]


def _claims_by_device(dra: DraState | None) -> _Claims:
    holding: dict[DeviceId, list[tuple[str, AllocatedDevice]]] = defaultdict(list)
    for key, claim in sorted(dra.claims.items()) if dra is not None else ():
        for allocated in claim.allocation.devices if claim.allocation is not None else ():
            if not allocated.admin_access:
                holding[allocated.id].append((key, allocated))
    return holding


def _of_driver(node: str, device: DraDevice, claims: _Claims, pods: Pods, *, spent: bool) -> Accelerator:
    driver = device.id.driver
    memory = next(
        (amount.nanos // _NANOS for name, amount in device.capacity if _bare(name) == "memory"), None
    )
    product = _attribute(device, "productName") or _attribute(device, "model")
    model = find_model(product, (memory or 0) // MIB) if product else None
    if memory is None and model is not None and model.memory_mib is not None:
        memory = model.memory_mib * MIB
    mig, partition = _attribute(device, "profile"), _attribute(device, "partitionProfile")
    partition = "" if partition.startswith(_UNCUT) else partition
    allocated = claims.get(device.id, ())
    closed = spent or untolerated(device.taints, ()) is not None
    return Accelerator(
        node=node,
        device=device.id.device,
        model=model.name if model is not None else product,
        memory_bytes=memory,
        handed_out_by=f"{driver}{_DRA}",
        form=DeviceForm.MIG if mig else DeviceForm.PARTITION if partition else DeviceForm.WHOLE,
        profile=mig or partition,
        shareable=device.shareable,
        holders=tuple(
            holder
            for claim, part in allocated
            for holder in _users(claim, pods, shared=device.shareable, memory=_consumed(part) or 0)
        ),
        free_units=0 if closed else None if device.shareable else int(not allocated),
        free_memory_bytes=0 if closed else _not_consumed(device, memory, [part for _, part in allocated]),
    )


def _not_consumed(device: DraDevice, memory: int | None, allocated: Sequence[AllocatedDevice]) -> int | None:
    """Return the free memory of a device; None if a claim on a shared device does not say its part."""
    if not allocated:
        return memory
    if not device.shareable:
        return 0
    consumed = [_consumed(part) for part in allocated]
    if memory is None or None in consumed:
        return None
    return max(memory - sum(amount or 0 for amount in consumed), 0)


def _consumed(allocated: AllocatedDevice) -> int | None:
    amounts = allocated.consumed or ()
    return next((nanos // _NANOS for name, nanos in amounts if _bare(name) == "memory"), None)


def _users(claim: str, pods: Pods, *, shared: bool, memory: int) -> list[DeviceHolder]:
    """Return the pods of this node that use a claim; the claim itself if there is none.

    Pods that share a claim use its part of the device together.
    """
    namespace, _, name = claim.partition("/")
    users = [
        key
        for key, shape in sorted(pods.items())
        if key.startswith(f"{namespace}/") and any(entry.claim == name for entry in shape.resource_claims)
    ]
    units = 0 if shared else 1
    if len(users) > 1:
        return [DeviceHolder(user, units) for user in users]
    return [DeviceHolder(users[0] if users else f"{claim} (claim)", units, memory)]


def _attribute(device: DraDevice, name: str) -> str:
    value = device.attribute(f"{device.id.driver}/{name}")
    return str(value.values[0]) if value is not None and value.values else ""


def _bare(name: str) -> str:
    return name.rpartition("/")[2]


# KAI: a reservation pod holds the device, and the pods of its group share it


def _is_reservation(shape: PodShape) -> bool:
    """A whole unit for a group; the namespace of such pods is a setting of KAI."""
    has_unit = any(resource in RESOURCES for resource, _ in shape.requests)
    return shape.devices is None and has_unit and any(name == _KAI_GROUP for name, _ in shape.labels)


def _kai_groups(pods: Pods) -> dict[str, list[tuple[str, PodShape]]]:
    groups: dict[str, list[tuple[str, PodShape]]] = defaultdict(list)
    for key, shape in sorted(pods.items()):
        if _is_reservation(shape):
            continue
        for name, value in shape.labels:
            if name == _KAI_GROUP:
                groups[value].append((key, shape))
            elif name.startswith(f"{_KAI_GROUP}/"):
                groups[name.removeprefix(f"{_KAI_GROUP}/")].append((key, shape))
    return groups


def _shared_by_kai(device: Accelerator, sharers: Sequence[tuple[str, PodShape]]) -> Accelerator:
    capacity = DeviceAmount(0, device.memory_bytes or 0)
    holders = tuple(
        DeviceHolder(key, 0, shape.devices.share.on(capacity).vram_bytes if shape.devices is not None else 0)
        for key, shape in sharers
    )
    shared = replace(device, handed_out_by=KAI, holders=holders, free_units=None)
    if any(shape.devices is None or not shape.devices.is_readable for _, shape in sharers):
        return replace(shared, free_units=0, free_memory_bytes=0)  # an unreadable share may be all of it
    if device.memory_bytes is None:
        return shared
    used = sum(holder.memory_bytes for holder in holders)
    return replace(shared, free_memory_bytes=max(device.memory_bytes - used, 0))


def _blank(node: str, group: DeviceGroup, name: str) -> Accelerator:
    memory = None if group.memory_mib is None else group.memory_mib * MIB
    return Accelerator(
        node=node,
        device=name,
        model=group.model,
        memory_bytes=memory,
        handed_out_by=group.handed_out_by,
        form=group.form.value,
        profile=group.profile,
        shareable=group.shareable,
        resource=group.resource,
        free_units=group.units_per_device,
        free_memory_bytes=memory,
        unstable=group.unstable,
    )


def _name(node: str, group: DeviceGroup, index: int) -> str:
    if group.names:
        return group.names[index]
    what = "gpu" if group.resource in RESOURCES else group.resource.partition("/")[2]
    return f"{node}-{what}-{index}"
