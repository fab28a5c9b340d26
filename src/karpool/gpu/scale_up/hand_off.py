"""Turns ready devices into allocations: reserve, remove the placeholder, wait until it is gone, commit once.

Between reserve and commit no other request can take the devices, and nothing is committed while a smart pod
still occupies them. If a hold, the process or a worker is lost on the way, the unit returns to Ready. The
record is written before a commit, so that each readiness is tried once. Gangs move together. Pure.
"""

from dataclasses import replace

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.input import CommitHold, DeviceHold, HoldDevices
from karpool.gpu.scale_up.leave_to_system import leave_to_system
from karpool.gpu.scale_up.node_bins import BinPacking, DeviceRoom, NodeBin, by_service
from karpool.gpu.scale_up.step_state import StepState
from karpool.gpu.scale_up.unit_progress import shown_devices
from karpool.model.devices.amounts import NOTHING
from karpool.model.devices.isolation import DYNAMIC
from karpool.model.devices.request import Gang
from karpool.packing.feasibility import admitted
from karpool.packing.tables.device_kinds import kind_of
from karpool.packing.tables.node_table import NodeRow, table_of


def hand_off(step: StepState, name: str) -> None:
    """Handle one record from Ready on."""
    if step.records[name].key.system:
        leave_to_system(step, name)
        return
    for unit in step.records[name].active_units:
        if unit.stage in (ScaleUpState.HANDING_OFF, ScaleUpState.RETRYING):
            _without_the_gone(step, name, unit)
    _go_on(step, name)
    _reserve(step, name)


def _without_the_gone(step: StepState, name: str, unit: ScaleUpUnit) -> None:
    """Drop workers that are bound, deleted or committed."""
    gone = tuple(uid for uid in unit.held if uid not in step.items)
    if not gone:
        return
    step.release(gone)
    if unit.stage is ScaleUpState.HANDING_OFF:
        step.put_unit(name, replace(unit, held=tuple(uid for uid in unit.held if uid not in gone)))


def _go_on(step: StepState, name: str) -> None:
    for unit in step.records[name].active_units:
        if unit.stage is ScaleUpState.HANDING_OFF:
            _clear_the_way(step, name, unit)
    for unit in step.records[name].active_units:
        if unit.stage is ScaleUpState.HANDING_OFF and _is_clear(step, name, unit):
            _begin_retry(step, name, unit)
    for unit in step.records[name].active_units:
        if unit.stage is ScaleUpState.RETRYING:
            _retry(step, name, unit)


def _clear_the_way(step: StepState, name: str, unit: ScaleUpUnit) -> None:
    pod = step.pod(step.records[name], unit)
    since = pod.deleting_since if pod is not None else None
    if since is not None and step.now - since >= step.settings.hold:
        step.fail_unit(name, unit, LaunchReason.TIMEOUT)  # the smart pod was not deleted in time
        return
    if not unit.held or any(_is_lost(step, uid) for uid in unit.held):
        _back_to_ready(step, name, unit)
    elif pod is not None:
        step.delete(pod, "node-ready")
    if unit.held:
        step.wake.extend(step.holds[uid].expires for uid in unit.held if uid in step.holds)


def _is_lost(step: StepState, uid: str) -> bool:
    hold = step.holds.get(uid)
    return hold is None or hold.expires <= step.now


def _back_to_ready(step: StepState, name: str, unit: ScaleUpUnit) -> None:
    """Return the unit to Ready, with every unit that holds members of the same gangs."""
    for partner in _partners(step, step.records[name], unit):
        step.release(partner.held)
        step.put_unit(name, replace(partner, stage=ScaleUpState.READY, since=step.now, held=()))


def _partners(step: StepState, record: ScaleUpRecord, unit: ScaleUpUnit) -> list[ScaleUpUnit]:
    gangs = _gangs(step, unit)
    return [
        up_unit
        for up_unit in record.active_units
        if up_unit.index == unit.index
        or (
            up_unit.stage in (ScaleUpState.HANDING_OFF, ScaleUpState.RETRYING)
            and gangs & _gangs(step, up_unit)
        )
    ]


def _gangs(step: StepState, unit: ScaleUpUnit) -> set[str]:
    held = (step.items.get(uid) for uid in unit.held)
    return {item.gang for item in held if item is not None and item.request.gang}


def _is_clear(step: StepState, name: str, unit: ScaleUpUnit) -> bool:
    """Whether no smart pod is on the devices of this unit and of the units of its gangs."""
    record = step.records[name]
    if not unit.held:
        return False
    return all(
        not any(_is_lost(step, uid) for uid in partner.held)
        and step.pod(record, partner) is None
        and not _is_occupied(step, partner)
        for partner in _partners(step, record, unit)
    )


def _is_occupied(step: StepState, unit: ScaleUpUnit) -> bool:
    """Whether a held device is still marked as used: the mark is cleared some time after its user is gone."""
    node = step.world.nodes.get(unit.node)
    held_devices = {device for uid in unit.held if uid in step.holds for device in step.holds[uid].devices}
    return node is None or any(device.name in held_devices and not device.is_ours for device in node.devices)


def _begin_retry(step: StepState, name: str, unit: ScaleUpUnit) -> None:
    record = step.records[name]
    retried = {**record.retried, **dict.fromkeys(unit.held, record.readiness_epoch)}
    step.records[name] = replace(record, retried=retried)
    step.put_unit(name, replace(unit, stage=ScaleUpState.RETRYING, since=step.now))


def _retry(step: StepState, name: str, unit: ScaleUpUnit) -> None:
    record = step.records[name]
    open_ = [uid for uid in unit.held if uid in step.items]
    epochs = {uid: record.retried.get(uid, record.readiness_epoch) for uid in open_}
    untried = [uid for uid in open_ if (uid, record.uid, epochs[uid]) not in step.world.attempted]
    if any(_is_lost(step, uid) for uid in untried):
        _back_to_ready(step, name, unit)  # the process that held them is gone
        return
    for uid in untried:
        step.commits.append(CommitHold(step.items[uid], name, epochs[uid]))
    if not untried:
        step.release(open_)  # tried and refused: they are pending again
        step.put_unit(name, replace(unit, stage=ScaleUpState.COMPLETED, since=step.now, held=()))


# Ready


def _reserve(step: StepState, name: str) -> None:
    record = step.records[name]
    ready = [unit for unit in record.active_units if unit.stage is ScaleUpState.READY]
    if not ready:
        return
    bins = {unit.index: _bin(step, record, unit) for unit in ready}
    packing = BinPacking(bins.values())
    left = _fill(step, name, packing)
    for unit in ready:
        placed = bins[unit.index].placed
        if placed:
            _place_holds(step, name, unit, bins[unit.index])
        else:
            since = min(unit.since for unit in ready)  # members give up together
            _unused(step, name, unit, bins[unit.index], left, since=since)


def _fill(step: StepState, name: str, packing: BinPacking) -> list[WaitingWorker]:
    """Serve the record's own demand first, then anything else that fits; return its own demand without a
    place.
    """
    held = step.held_anywhere()
    own = {item.uid for item in step.waiting(name)} - held
    everybody = [
        item
        for item in step.items.values()
        if item.system is None and item.uid not in held and step.is_whole(item)
    ]
    left: list[WaitingWorker] = []
    for group in sorted(by_service(everybody), key=lambda group: not any(i.uid in own for i in group)):
        if not packing.put_all(group):
            left.extend(item for item in group if item.uid in own)
    return left


def _bin(step: StepState, record: ScaleUpRecord, unit: ScaleUpUnit) -> NodeBin:
    node = step.world.nodes[unit.node]
    pod = step.pod(record, unit)
    devices = shown_devices(node, pod)
    rooms = [
        DeviceRoom(
            device.name,
            kind_of(device),
            device.available or NOTHING,
            untouched=device.available == device.capacity,
            partitions=tuple(device.partitions.values()),
        )
        for device in devices
        if not device.isolation_conflict
    ]
    locks = {device.name: device.active_isolation_mode for device in devices}
    # The capacity of the unit's own smart pod becomes free with it.
    cpu = node.cpu_milli + (unit.cpu_milli if pod is not None and pod.node else 0)
    memory = node.memory_bytes + (unit.memory_bytes if pod is not None and pod.node else 0)

    as_row = table_of([NodeRow(node.name, node.labels, node.taints)])

    def serves(item: WaitingWorker, room: DeviceRoom) -> bool:
        is_locked = room.kind.policy == DYNAMIC and locks[room.name] not in ("", item.request.isolation)
        return bool(admitted(as_row, item.shape)[0]) and not is_locked and room.kind.admits(item.demand)

    links = {device.name.lower(): dict(device.links) for device in devices if device.links}
    return NodeBin(unit.node, rooms, cpu, memory, serves, links=links)


def _place_holds(step: StepState, name: str, unit: ScaleUpUnit, bin_: NodeBin) -> None:
    expires = step.now + step.settings.hold
    uids = []
    for placement in bin_.placed:
        devices = tuple(room.name for room in placement.rooms)
        uid = placement.item.uid
        step.new_holds.append(HoldDevices(placement.item, unit.node, devices, expires))
        step.holds[uid] = DeviceHold(uid, unit.node, devices, expires)
        uids.append(uid)
    step.put_unit(
        name, replace(unit, stage=ScaleUpState.HANDING_OFF, since=step.now, held=tuple(sorted(uids)))
    )
    step.wake.append(step.now)


def _unused(
    step: StepState, name: str, unit: ScaleUpUnit, bin_: NodeBin, left: list[WaitingWorker], *, since: float
) -> None:
    """End or keep a node that serves no item: it is too late, the wrong one, or waits for the rest
    of a gang.
    """
    servable = [item for item in left if _could_serve(bin_, item)]
    gangs = {item.request.gang for item in servable if item.request.gang is not None}
    if not left:
        step.end_unit(name, unit)
    elif not servable:
        step.fail_unit(name, unit, LaunchReason.WRONG_NODE)
    elif not gangs:
        step.fail_unit(name, unit, LaunchReason.INTERRUPTED)  # its capacity was taken meanwhile
    elif all(_has_timed_out(gang, since, step.now) for gang in gangs):
        step.fail_unit(
            name, unit, LaunchReason.TIMEOUT
        )  # others may use the node; the gang tries again later
    else:
        step.wake.extend(since + gang.timeout_seconds for gang in gangs if gang.timeout_seconds)


def _has_timed_out(gang: Gang, since: float, now: float) -> bool:
    """Whether members with a node have waited too long for the others; never without a timeout."""
    return bool(gang.timeout_seconds) and now - since >= gang.timeout_seconds


def _could_serve(bin_: NodeBin, item: WaitingWorker) -> bool:
    empty = NodeBin(
        bin_.name,
        [DeviceRoom(room.name, room.kind, room.kind.capacity) for room in bin_.rooms],
        item.request.cpu_milli,
        item.request.memory_bytes,
        bin_.serves,
    )
    return empty.put(item)
