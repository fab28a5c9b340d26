"""What a step came to, as log lines and metrics: one line per decision, renderings of the same values."""

import structlog

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.controller.metrics import FAILURE, SUCCESS, UNKNOWN, ScaleUpMetrics
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.scale_up.input import ScaleUpInput, ScaleUpPlan

log = structlog.get_logger(__name__)

# The time between two stages, and what it is called.
_TIMED = {
    ScaleUpState.PENDING: "decision",
    ScaleUpState.LAUNCHING: "decision",
    ScaleUpState.REGISTERED: "launch",
    ScaleUpState.DEVICE_WAIT: "registration",
    ScaleUpState.READY: "device",
    ScaleUpState.COMPLETED: "handoff",
}


def report_step(world: ScaleUpInput, plan: ScaleUpPlan, metrics: ScaleUpMetrics | None) -> None:
    for record in plan.store:
        _transition(world.records.get(record.name), record)
        if metrics is not None:
            _measure(world, world.records.get(record.name), record, metrics)


class SmartPodCounter:
    """Smart pods that came and went, counted as they are seen: what was created and is not gone is active.

    Those that were there at the start were counted by whoever ran before.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] | None = None  # uid -> pool and model
        self._reasons: dict[str, str] = {}  # why each was asked to go

    def count(self, world: ScaleUpInput, plan: ScaleUpPlan, metrics: ScaleUpMetrics) -> None:
        seen: dict[str, tuple[str, str]] = {}
        for pod in world.placeholders:
            known = (self._known or {}).get(pod.uid)
            record = world.records.get(pod.request)
            seen[pod.uid] = known or ((record.key.pool, record.key.model) if record else (UNKNOWN, UNKNOWN))
            if known is None and self._known is not None:
                metrics.created(*seen[pod.uid])
        for uid, pair in (self._known or {}).items():
            if uid not in seen:
                metrics.deleted(*pair, self._reasons.pop(uid, "gone"))
        self._reasons |= {delete.placeholder.uid: delete.reason for delete in plan.deletes}
        self._known = seen


def _transition(old: ScaleUpRecord | None, new: ScaleUpRecord) -> None:
    if old is not None and (old.state, old.epoch) == (new.state, new.epoch):
        return
    log.info(
        "scale-up",
        scale_up=new.name,
        demand=str(new.key),
        state=new.state.value,
        epoch=new.epoch,
        waiting=new.waiting,
        nodes=len(new.active_units),
        reason=new.reason or new.message,
    )


def _measure(
    world: ScaleUpInput, old: ScaleUpRecord | None, new: ScaleUpRecord, metrics: ScaleUpMetrics
) -> None:
    key = new.key
    metrics.pool_seen(key.pool, key.model)
    before = {unit.index: unit for unit in old.units} if old is not None and old.epoch == new.epoch else {}
    demand = world.demand.get(new.name)
    for unit in new.units:
        known = before.get(unit.index)
        if known is None or known == unit or not known.is_active:
            continue
        rung = demand.rung(unit.candidate) if demand else None
        candidate = str(rung) if rung else unit.candidate
        if unit.ended and unit.ended != LaunchReason.SURPLUS:
            metrics.attempt(key.pool, key.model, candidate, FAILURE, str(unit.ended))
        elif unit.stage is ScaleUpState.COMPLETED:
            metrics.attempt(key.pool, key.model, candidate, SUCCESS)
            metrics.stage_seconds(key.pool, "total", world.now - unit.started)
        _time(key.pool, known, unit, metrics)


def _time(pool: str, known: ScaleUpUnit, unit: ScaleUpUnit, metrics: ScaleUpMetrics) -> None:
    if unit.stage is known.stage or unit.stage not in _TIMED:
        return
    metrics.stage_seconds(pool, _TIMED[unit.stage], max(0.0, unit.since - known.since))
