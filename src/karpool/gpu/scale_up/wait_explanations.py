"""Explains to each pending worker the state of its scale-up: a reason and a sentence with the numbers."""

from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.scale_up.demand import GpuDemand, WaitingWorker
from karpool.gpu.scale_up.input import WaitExplanation, WaitReason
from karpool.gpu.scale_up.step_state import StepState

_OF_STAGE = {
    ScaleUpState.CREATING: WaitReason.REQUESTED,
    ScaleUpState.PENDING: WaitReason.REQUESTED,
    ScaleUpState.LAUNCHING: WaitReason.COMING,
    ScaleUpState.REGISTERED: WaitReason.COMING,
    ScaleUpState.DEVICE_WAIT: WaitReason.DEVICES,
    ScaleUpState.READY: WaitReason.DEVICES,
    ScaleUpState.HANDING_OFF: WaitReason.HANDING_OFF,
    ScaleUpState.RETRYING: WaitReason.HANDING_OFF,
}


def explain(step: StepState) -> None:
    held = {
        uid: (record, unit)
        for record in step.records.values()
        for unit in record.active_units
        for uid in unit.held
    }
    for name, demand in step.world.demand.items():
        record = step.records.get(name)
        general = _general(record, demand)  # the same for all items of a key; there may be many
        for item in demand.items:
            if item.uid in step.items:
                step.explanations[item.uid] = _told(step, item, held.get(item.uid), general)


def _general(record: ScaleUpRecord | None, demand: GpuDemand) -> tuple[WaitReason, str]:
    if record is None:
        return WaitReason.WAITING, f"no GPU can hold {demand.key}; a scale-up has started"
    return _about(record, demand)


def _told(
    step: StepState,
    item: WaitingWorker,
    held: tuple[ScaleUpRecord, ScaleUpUnit] | None,
    general: tuple[WaitReason, str],
) -> WaitExplanation:
    if not step.is_whole(item):
        gang = item.request.gang
        assert gang is not None
        text = f"waits for its group {gang.group}: {gang.required_members} members start together"
        return WaitExplanation(item.uid, WaitReason.WAITING, text)
    if held is not None:
        record, unit = held
        text = f"scale-up {record.name}: devices of node {unit.node} are reserved; {unit.stage.value}"
        if record.key.system:
            owner = record.key.system
            text = f"scale-up {record.name}: node {unit.node} is ready; {owner} allocates its devices"
        return WaitExplanation(item.uid, WaitReason.HANDING_OFF, text)
    joined = step.joined.get(item.uid)
    if joined is not None:
        text = f"a starting node of scale-up {joined} has capacity for it"
        return WaitExplanation(item.uid, WaitReason.JOINED, text)
    return WaitExplanation(item.uid, *general)


def _about(record: ScaleUpRecord, demand: GpuDemand) -> tuple[WaitReason, str]:
    prefix = f"scale-up {record.name}"
    match record.state:
        case ScaleUpState.BACKOFF:
            why = record.reason or "it failed"
            return (
                WaitReason.BACKOFF,
                f"{prefix}: attempt {record.epoch} ended: {why}; the next candidate follows",
            )
        case ScaleUpState.EXHAUSTED:
            tried = f"all {len(demand.ladder)} candidates failed in round {record.round + 1}"
            return (
                WaitReason.EXHAUSTED,
                f"{prefix}: {tried} ({record.message}); the next round starts with the first",
            )
        case ScaleUpState.REJECTED:
            return WaitReason.REJECTED, f"{prefix}: no candidate can serve it ({record.message})"
        case _ if record.active_units:
            unit = max(record.active_units, key=lambda active: (active.stage.place, -active.index))
            return _OF_STAGE[unit.stage], f"{prefix}: {_words(record, unit, demand)}"
        case _:
            return WaitReason.WAITING, f"{prefix}: {record.state.value}, {record.waiting} waiting"


def _words(record: ScaleUpRecord, unit: ScaleUpUnit, demand: GpuDemand) -> str:
    rung = demand.rung(unit.candidate)
    asked = f"{len(record.active_units)} node(s) requested, {rung or unit.candidate}"
    place = f", node {unit.node}" if unit.node else f", claim {unit.claim}" if unit.claim else ""
    return f"{asked}: {unit.stage.value}{place}"
