"""Ready nodes for pods of another scheduler: remove the smart pod, and check whether the pods are bound.

Nothing is reserved, committed or bound. When the system shows its devices the smart pod is deleted, and the
items of the node are watched until they are bound or gone. If none is bound in time, the node was the wrong
one and another candidate is tried. Pure.
"""

from dataclasses import replace

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.node_bins import BinPacking, NodeBin, by_service, fresh_bin
from karpool.gpu.scale_up.step_state import StepState
from karpool.model.devices.node_devices import NodeYield


def leave_to_system(step: StepState, name: str) -> None:
    """Handle one record of another system's pods from Ready on."""
    for unit in step.records[name].active_units:
        if unit.stage is ScaleUpState.READY:
            _step_aside(step, name, unit)
        elif unit.stage is ScaleUpState.HANDING_OFF:
            _watch(step, name, unit)


def coming_bin(step: StepState, record: ScaleUpRecord, unit: ScaleUpUnit) -> NodeBin:
    """The whole node of a unit: its smart pod does not occupy any device."""
    demand = step.demand(record.name)
    rung = demand.rung(unit.candidate) if demand is not None else None
    brings = (
        replace(rung.brings, devices=unit.devices)
        if rung is not None
        else NodeYield(
            unit.devices,
            unit.tflops_milli,
            unit.vram_bytes,
            unit.cpu_milli,
            unit.memory_bytes,
            record.key.model,
        )
    )

    def serves(item: WaitingWorker, room: object) -> bool:
        return step.is_served_by(item, record, unit.candidate)

    drivers = rung.drivers if rung is not None else None
    return fresh_bin(f"{record.name}/{record.epoch}/{unit.index}", brings, serves, drivers=drivers)


def _step_aside(step: StepState, name: str, unit: ScaleUpUnit) -> None:
    record = step.records[name]
    bin_ = coming_bin(step, record, unit)
    packing, taken = BinPacking([bin_]), step.held_anywhere()
    own = {item.uid for item in step.waiting(name)} - taken
    system = [item for item in step.items.values() if (item.system or "") == record.key.system]
    waiting = [item for item in system if item.uid not in taken and step.is_whole(item)]
    for group in sorted(by_service(waiting), key=lambda group: not any(item.uid in own for item in group)):
        packing.put_all(group)
    if bin_.placed:
        uids = tuple(sorted(placement.item.uid for placement in bin_.placed))
        step.put_unit(name, replace(unit, stage=ScaleUpState.HANDING_OFF, since=step.now, held=uids))
        step.wake.append(step.now + step.settings.hold)
    elif own:
        step.fail_unit(name, unit, LaunchReason.WRONG_NODE)
    else:
        _complete(step, name, unit)  # they were bound while the last device appeared


def _watch(step: StepState, name: str, unit: ScaleUpUnit) -> None:
    waiting = [uid for uid in unit.held if uid in step.items]
    ends = unit.since + step.settings.hold
    if not waiting:
        _complete(step, name, unit)
    elif step.now < ends:
        step.wake.append(ends)
    elif len(waiting) < len(unit.held):
        _complete(step, name, unit)  # the others are pending again
    else:
        step.fail_unit(name, unit, LaunchReason.WRONG_NODE)


def _complete(step: StepState, name: str, unit: ScaleUpUnit) -> None:
    step.put_unit(name, replace(unit, stage=ScaleUpState.COMPLETED, since=step.now, held=()))
