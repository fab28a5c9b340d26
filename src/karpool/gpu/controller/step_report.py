"""Reports the result of a step as log lines and metrics: one line per decision."""

from collections.abc import Collection, Mapping

import structlog

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.controller.metrics import FAILURE, SUCCESS, UNKNOWN, ScaleUpMetrics
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState
from karpool.gpu.scale_up.input import ScaleUpInput, ScaleUpPlan

log = structlog.get_logger(__name__)

# What the time in a stage is spent on, in order. A step may pass several stages at once.
_SPENT_ON = {
    ScaleUpState.CREATING: "decision",
    ScaleUpState.PENDING: "decision",
    ScaleUpState.LAUNCHING: "launch",
    ScaleUpState.REGISTERED: "registration",
    ScaleUpState.DEVICE_WAIT: "device",
    ScaleUpState.READY: "handoff",
    ScaleUpState.HANDING_OFF: "handoff",
    ScaleUpState.RETRYING: "handoff",
}
_PERIODS = tuple(dict.fromkeys(_SPENT_ON.values()))
_UnitKey = tuple[str, int, int]  # name of the record, epoch, index


class StepReport:
    """Remembers what was counted: smart pods by uid, and the start of each unit's current period.

    Smart pods that existed at the start were counted by the previous process; earlier periods are counted
    from the last stage in the record.
    """

    def __init__(self, metrics: ScaleUpMetrics | None) -> None:
        self._metrics = metrics
        self._smart_pods: dict[str, tuple[str, str]] | None = None  # uid -> pool and model
        self._delete_reasons: dict[str, str] = {}
        self._begun: dict[_UnitKey, tuple[int, float]] = {}  # index in _PERIODS, and start

    def report(self, world: ScaleUpInput, plan: ScaleUpPlan, unwritten: Collection[str] = ()) -> None:
        """`unwritten` are records that could not be stored or removed: the next step decides them again."""
        written = {
            record.name: record for record in (*plan.store, *plan.remove) if record.name not in unwritten
        }
        for name, record in written.items():
            _log_transition(world.records.get(name), record)
        if self._metrics is not None:
            for record in written.values():
                self._count_ended_units(world, record, self._metrics)
            self._time_units({**world.records, **written}, world.now, self._metrics)
            self._count_smart_pods(world, plan, self._metrics)

    def _count_ended_units(self, world: ScaleUpInput, record: ScaleUpRecord, metrics: ScaleUpMetrics) -> None:
        key = record.key
        metrics.pool_seen(key.pool, key.model)
        before = world.records.get(record.name)
        old_units = before.units if before is not None and before.epoch == record.epoch else ()
        active = {unit.index for unit in old_units if unit.is_active}
        demand = world.demand.get(record.name)
        for unit in record.units:
            if unit.index not in active or unit.is_active:
                continue
            rung = demand.rung(unit.candidate) if demand else None
            candidate = str(rung) if rung else unit.about or unit.candidate
            if not unit.ended:
                metrics.attempt(key.pool, key.model, candidate, SUCCESS)
                metrics.stage_seconds(key.pool, "total", world.now - unit.started)
            elif unit.ended != LaunchReason.SURPLUS:
                metrics.attempt(key.pool, key.model, candidate, FAILURE, str(unit.ended))

    def _time_units(self, records: Mapping[str, ScaleUpRecord], now: float, metrics: ScaleUpMetrics) -> None:
        begun: dict[_UnitKey, tuple[int, float]] = {}
        for record in records.values():
            for unit in record.units:
                key = (record.name, record.epoch, unit.index)
                if unit.ended or not (unit.is_active or key in self._begun):
                    continue
                reached = _PERIODS.index(_SPENT_ON[unit.stage]) if unit.is_active else len(_PERIODS)
                position, since = self._begun.get(key, (reached, unit.since))
                for period in _PERIODS[position:reached]:
                    metrics.stage_seconds(record.key.pool, period, now - since)
                    since = now
                if unit.is_active:
                    begun[key] = reached, since
        self._begun = begun

    def _count_smart_pods(self, world: ScaleUpInput, plan: ScaleUpPlan, metrics: ScaleUpMetrics) -> None:
        """Count smart pods as observed: one that was created and is not gone is active."""
        pods: dict[str, tuple[str, str]] = {}
        counted = self._smart_pods or {}
        for pod in world.placeholders:
            record = world.records.get(pod.request)
            pool_and_model = (record.key.pool, record.key.model) if record else (UNKNOWN, UNKNOWN)
            pods[pod.uid] = counted.get(pod.uid, pool_and_model)
            if self._smart_pods is not None and pod.uid not in counted:
                metrics.created(*pods[pod.uid])
        for uid in counted.keys() - pods.keys():
            metrics.deleted(*counted[uid], self._delete_reasons.pop(uid, "gone"))
        self._delete_reasons |= {delete.placeholder.uid: delete.reason for delete in plan.deletes}
        self._smart_pods = pods


def _log_transition(old: ScaleUpRecord | None, new: ScaleUpRecord) -> None:
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
