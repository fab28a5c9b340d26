"""One step of all scale-ups: from an observation to writes and actions. Pure and level-triggered.

`step(world, settings)` may be called at any time and any number of times; the same input gives the same plan.
It does not depend on the event that caused it, nor on earlier calls, except through the records. The order:
update each unit from the cluster, hand over what is ready, size the requests, settle each record's state,
clean up.
"""

from dataclasses import replace

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.records.scale_up_record import ATTEMPTING, ScaleUpRecord, ScaleUpState
from karpool.gpu.scale_up.hand_off import hand_off
from karpool.gpu.scale_up.input import CreatePlaceholder, ScaleUpInput, ScaleUpPlan
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.gpu.scale_up.sizing import size_scale_ups
from karpool.gpu.scale_up.step_state import StepState
from karpool.gpu.scale_up.unit_progress import advance, timers
from karpool.gpu.scale_up.wait_explanations import explain
from karpool.provisioning.candidates.attempts import new_round
from karpool.provisioning.node_request import RequestPurpose

_SHOWN = 20  # items named in a record; the count is of all
_BACK = frozenset((ScaleUpState.HANDING_OFF, ScaleUpState.RETRYING))


def plan_step(world: ScaleUpInput, settings: ScaleUpSettings) -> ScaleUpPlan:
    deciding = StepState(world, settings)
    for name in list(deciding.records):
        _look(deciding, name)
        hand_off(deciding, name)
        _settle(deciding, name)
    size_scale_ups(deciding)
    for name in list(deciding.records):
        _settle(deciding, name)
        _create(deciding, name)
    _new_records(deciding)
    _tidy(deciding)
    explain(deciding)
    return _plan(deciding)


def _look(deciding: StepState, name: str) -> None:
    """Advance each unit as far as the cluster shows; units without demand may end."""
    if not deciding.waiting(name):
        _nobody_waits(deciding, name)
    for unit in deciding.records[name].active_units:
        record = deciding.records[name]
        current = next(up_unit for up_unit in record.units if up_unit.index == unit.index)
        if not current.is_active:
            continue
        if current.stage in _BACK:
            node = deciding.world.nodes.get(current.node)
            if node is None or node.going:
                deciding.fail_unit(name, current, LaunchReason.INTERRUPTED)
            continue
        seen = advance(record, current, deciding.pod(record, current), deciding.world, deciding.settings)
        if isinstance(seen, LaunchReason):
            deciding.fail_unit(name, current, seen)
            continue
        if seen.stage is ScaleUpState.READY and current.stage is not ScaleUpState.READY:
            deciding.records[name] = replace(record, readiness_epoch=record.readiness_epoch + 1)
        deciding.put_unit(name, seen)


def _nobody_waits(deciding: StepState, name: str) -> None:
    """Without any demand end all units. Otherwise units that serve other records' items continue, and sizing
    ends the rest.
    """
    if deciding.items:
        return
    record = deciding.records[name]
    for unit in record.active_units:
        if record.key.system and unit.node:  # its pods were bound as soon as the node was ready
            deciding.put_unit(name, replace(unit, stage=ScaleUpState.COMPLETED, since=deciding.now))
        elif unit.stage not in _BACK:
            deciding.end_unit(name, unit)


def _settle(deciding: StepState, name: str) -> None:
    before = deciding.world.records.get(name)
    record = deciding.records[name]
    waiting = deciding.waiting(name)
    state, reason, message = _state(deciding, record, before, bool(waiting))
    if state is ScaleUpState.BUFFERED and record.state is ScaleUpState.COMPLETED:
        record = replace(record, attempts=0)
    if record.state is ScaleUpState.EXHAUSTED and state is ScaleUpState.BACKOFF:
        record = replace(record, round=record.round + 1, memory=new_round(record.memory), attempts=0)
    since = record.state_since if state is record.state else deciding.now
    held = {uid for unit in record.active_units for uid in unit.held}
    deciding.records[name] = replace(
        record,
        state=state,
        reason=reason,
        message=message,
        state_since=since,
        retried={uid: epoch for uid, epoch in record.retried.items() if uid in held},
        waiting=len(waiting),
        demand=tuple(item.request.key for item in waiting[:_SHOWN]),
    )


def _state(
    deciding: StepState, record: ScaleUpRecord, before: ScaleUpRecord | None, waiting: bool
) -> tuple[ScaleUpState, str, str]:
    if record.active_units:
        return _furthest_behind(record, before), record.reason, record.message
    if not waiting:
        if record.state.is_terminal:
            return record.state, record.reason, record.message
        served = any(unit.stage is ScaleUpState.COMPLETED for unit in record.units)
        return (
            (ScaleUpState.COMPLETED if served else ScaleUpState.CANCELLED),
            "NoDemand",
            "no worker waits for it",
        )
    match record.state:
        case state if state in ATTEMPTING:
            setbacks = [
                unit.ended for unit in record.units if unit.ended and unit.ended != LaunchReason.SURPLUS
            ]
            if setbacks:
                return ScaleUpState.BACKOFF, str(setbacks[-1]), ""
            return ScaleUpState.BUFFERED, "", ""
        case ScaleUpState.COMPLETED | ScaleUpState.CANCELLED:
            return ScaleUpState.BUFFERED, "", ""
        case ScaleUpState.EXHAUSTED if deciding.now >= record.next_attempt:
            return ScaleUpState.BACKOFF, record.reason, record.message
        case _:
            return record.state, record.reason, record.message


def _furthest_behind(record: ScaleUpRecord, before: ScaleUpRecord | None) -> ScaleUpState:
    """The state of the least advanced unit. Within an attempt it never goes back, except to Ready after a
    lost hold.
    """
    state = min((unit.stage for unit in record.active_units), key=lambda stage: stage.place)
    if before is None or before.epoch != record.epoch or before.state not in ATTEMPTING:
        return state
    if before.state in _BACK and state is ScaleUpState.READY:
        return state
    return max(before.state, state, key=lambda stage: stage.place)


def _create(deciding: StepState, name: str) -> None:
    """Create the missing smart pods. Their record is stored before."""
    record = deciding.records[name]
    demand = deciding.demand(name)
    for unit in record.active_units:
        if (
            unit.node
            or unit.stage.place > ScaleUpState.LAUNCHING.place
            or deciding.pod(record, unit) is not None
        ):
            continue
        rung = demand.rung(unit.candidate) if demand else None
        if rung is not None:
            deciding.creates.append(CreatePlaceholder(name, record.epoch, unit, rung))


def _new_records(deciding: StepState) -> None:
    # Smart pods of a deleted record are garbage collected, or deleted as orphans; a new one begins after
    # them.
    left_over = {pod.request for pod in deciding.world.placeholders if pod.deleting_since is None}
    for name, demand in deciding.world.demand.items():
        waiting = deciding.waiting(name)
        if name in deciding.records or name in left_over or not waiting:
            continue
        pods = (pod.epoch for pod in deciding.world.placeholders if pod.request == name)
        deciding.records[name] = ScaleUpRecord(
            key=demand.key,
            state=ScaleUpState.BUFFERED,
            first_seen=deciding.now,
            state_since=deciding.now,
            epoch=max(pods, default=0),
            waiting=len(waiting),
            demand=tuple(item.request.key for item in waiting[:_SHOWN]),
        )
        deciding.wake.append(deciding.now + deciding.settings.debounce)


def _tidy(deciding: StepState) -> None:
    """Remove smart pods and holds without a unit, and records that are over."""
    needed = {
        (record.name, record.epoch, unit.index)
        for record in deciding.records.values()
        for unit in record.active_units
        if unit.stage not in _BACK
    }
    present: set[str] = set()
    for key, pod in deciding.pods.items():
        present.add(pod.request)
        if key in needed or pod.purpose is not RequestPurpose.SCALE_UP:
            continue
        if pod.request in deciding.records:
            deciding.delete(pod, _why(deciding.records[pod.request], pod.index, pod.epoch))
        elif deciding.now - pod.created >= deciding.settings.orphan_grace:
            deciding.delete(pod, "orphan")
        else:
            deciding.wake.append(pod.created + deciding.settings.orphan_grace)
    held = deciding.held_anywhere()
    deciding.release([uid for uid in deciding.world.holds if uid not in held])
    for record in list(deciding.records.values()):
        if record.uid and _is_over(deciding, record) and record.name not in present:
            deciding.remove.append(record)
            del deciding.records[record.name]


def _why(record: ScaleUpRecord, index: int, epoch: int) -> str:
    """The reason for the metric; a small set of values."""
    if epoch != record.epoch:
        return "old-epoch"
    unit = next((up_unit for up_unit in record.units if up_unit.index == index), None)
    if unit is None:
        return "old-epoch"
    if unit.stage in _BACK or unit.stage is ScaleUpState.COMPLETED:
        return "node-ready"
    return str(unit.ended or "no-demand")


def _is_over(deciding: StepState, record: ScaleUpRecord) -> bool:
    if record.state is ScaleUpState.REJECTED:
        return deciding.now >= record.next_attempt or not deciding.waiting(record.name)
    return record.state.is_terminal


def _plan(deciding: StepState) -> ScaleUpPlan:
    stored = deciding.world.records
    store = tuple(record for name, record in deciding.records.items() if stored.get(name) != record)
    for record in deciding.records.values():
        for unit in record.active_units:
            deciding.wake.extend(timers(unit, deciding.settings))
        if record.state in (ScaleUpState.BACKOFF, ScaleUpState.EXHAUSTED, ScaleUpState.REJECTED):
            deciding.wake.append(record.next_attempt)
        elif record.state is ScaleUpState.BUFFERED:
            deciding.wake.append(record.state_since + deciding.settings.debounce)
    if deciding.records or deciding.world.placeholders:
        deciding.wake.append(deciding.now + deciding.settings.resync)
    later = [at for at in deciding.wake if at > deciding.now]
    return ScaleUpPlan(
        store=store,
        remove=tuple(deciding.remove),
        creates=tuple(deciding.creates),
        deletes=tuple(deciding.deletes.values()),
        holds=tuple(deciding.new_holds),
        drops=tuple(deciding.drops),
        commits=tuple(deciding.commits),
        explanations=deciding.explanations,
        wake_at=min(later, default=None),
    )
