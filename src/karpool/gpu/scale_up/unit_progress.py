"""Computes the progress of one unit: its stage as the cluster shows it, before the hand-off.

`advance` uses the unit's smart pod, claim, node and devices, and only what the record itself stores (which
node, which claim). Stages only move forward. A unit that timed out, or whose node is lost, returns the
reason. Pure.
"""

from dataclasses import replace

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.scale_up.input import GpuNodeView, ScaleUpInput
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.model.devices.device import RUNNING, SMART_POD_USE, Device
from karpool.provisioning.candidates.attempts import setback_of
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState


def advance(
    record: ScaleUpRecord,
    unit: ScaleUpUnit,
    pod: Placeholder | None,
    world: ScaleUpInput,
    settings: ScaleUpSettings,
) -> ScaleUpUnit | LaunchReason:
    """The advanced unit, or why it ends. For active units up to READY."""
    if (record.name, record.epoch, unit.index) in world.refused and pod is None:
        return LaunchReason.CREATE_REFUSED
    seen = _located(unit, pod, world)
    if isinstance(seen, LaunchReason):
        return seen
    moved = _staged(record, seen, pod, world, settings)
    if isinstance(moved, LaunchReason):
        return moved
    return overdue(moved, world.now, settings) or moved


def _located(unit: ScaleUpUnit, pod: Placeholder | None, world: ScaleUpInput) -> ScaleUpUnit | LaunchReason:
    """Locate the unit's node or claim. A node can only be lost after it was seen.

    A nomination is a guess; the node that the smart pod is bound to is certain, and may be another one.
    """
    if pod is not None and pod.node and pod.node != unit.node and pod.node in world.nodes:
        going = world.nodes[pod.node].going
        return LaunchReason.INTERRUPTED if going else replace(unit, claim=pod.claim, node=pod.node)
    if unit.node:
        node = world.nodes.get(unit.node)
        return LaunchReason.INTERRUPTED if node is None or node.going else unit
    if pod is not None and pod.outlook is PlaceholderState.ENDED:
        return LaunchReason.CLAIM_LOST
    claim = pod.claim if pod is not None and pod.claim else unit.claim
    progress = world.claims.get(claim) if claim else None
    node_name = pod.node if pod is not None and pod.node else progress.node if progress else ""
    if node_name and node_name in world.nodes:
        if world.nodes[node_name].going:
            return LaunchReason.INTERRUPTED
        return replace(unit, claim=claim, node=node_name)
    if progress is not None:
        if progress.ending is not None:
            return setback_of(progress.ending)
        return replace(unit, claim=claim)
    if unit.claim and claim == unit.claim:  # it existed, and is gone
        return LaunchReason.CLAIM_LOST
    return unit


def _staged(
    record: ScaleUpRecord,
    unit: ScaleUpUnit,
    pod: Placeholder | None,
    world: ScaleUpInput,
    settings: ScaleUpSettings,
) -> ScaleUpUnit | LaunchReason:
    if not unit.node:
        if unit.claim:
            return _at(unit, ScaleUpState.LAUNCHING, world.now)
        if pod is None:
            return unit
        if pod.outlook is PlaceholderState.REFUSED and unit.stage is ScaleUpState.PENDING:
            waited = world.now - unit.since
            # A first refusal may be temporary: the autoscaler tries again every few seconds.
            return LaunchReason.AUTOSCALER_REFUSED if waited >= settings.resync else unit
        # Not every backend names a claim or a node; it may only report that a node is coming.
        coming = pod.outlook in (PlaceholderState.COMING, PlaceholderState.THERE)
        return _at(unit, ScaleUpState.LAUNCHING if coming else ScaleUpState.PENDING, world.now)
    node = world.nodes[unit.node]
    if unit.stage is ScaleUpState.READY:
        return unit
    if not node.ready:
        return _at(unit, ScaleUpState.REGISTERED, world.now)
    waiting = _at(unit, ScaleUpState.DEVICE_WAIT, world.now)
    shown = node.handed_out(record.key) if record.key.system else len(shown_devices(node, pod))
    if shown >= max(unit.devices, unit.gpus, 1):
        return _at(waiting, ScaleUpState.READY, world.now)
    if world.now - waiting.since < settings.device_limit:
        return waiting
    # Fewer devices than expected may still be enough for the pending items.
    return (
        _at(waiting, ScaleUpState.READY, world.now) if shown >= unit.gpus else LaunchReason.DEVICE_NOT_READY
    )


def _at(unit: ScaleUpUnit, stage: ScaleUpState, now: float) -> ScaleUpUnit:
    """The unit at this stage, or at its own if that is later."""
    return replace(unit, stage=stage, since=now) if stage.place > unit.stage.place else unit


def shown_devices(node: GpuNodeView, pod: Placeholder | None) -> tuple[Device, ...]:
    """Devices that could be handed over: running, and free or occupied by this smart pod."""
    own = f"{SMART_POD_USE}{pod.uid}" if pod is not None else ""
    return tuple(
        device
        for device in node.devices
        if device.phase == RUNNING
        and device.capacity is not None
        and not device.capacity.is_zero
        and (device.is_ours or device.used_by == own)
    )


def overdue(unit: ScaleUpUnit, now: float, settings: ScaleUpSettings) -> LaunchReason | None:
    """Why the unit has timed out; None if it has not.

    Only our own timestamps count: the API server stamps pods by a wall clock, which may have jumped since.
    """
    if now - unit.started >= settings.maximum_age:
        return LaunchReason.TIMEOUT
    match unit.stage:
        case ScaleUpState.PENDING if now - unit.since >= settings.pending_limit:
            return LaunchReason.NO_REACTION
        case ScaleUpState.LAUNCHING if now - unit.started >= settings.launch_limit:
            return LaunchReason.LAUNCH_TIMEOUT
        case ScaleUpState.REGISTERED if now - unit.started >= settings.launch_limit:
            return LaunchReason.REGISTRATION_TIMEOUT
    return None


def timers(unit: ScaleUpUnit, settings: ScaleUpSettings) -> list[float]:
    """The times at which a unit must be checked even if nothing changes."""
    due = [unit.started + settings.maximum_age]
    match unit.stage:
        case ScaleUpState.PENDING:
            due += [unit.since + settings.pending_limit, unit.since + settings.resync]
        case ScaleUpState.LAUNCHING | ScaleUpState.REGISTERED:
            due.append(unit.started + settings.launch_limit)
        case ScaleUpState.DEVICE_WAIT:
            due.append(unit.since + settings.device_limit)
    return due
