"""Scale-ups as timelines: failure, smart pod, claim, machine, node, devices, retry.

A record has its current stage. The times of earlier stages come from the smart pod, the claim and its
conditions. A time that is no longer known is left out. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.dashboard.api.views import ScaleUpList, ScaleUpRow, TimelineStep, TriedRow, UnitTimeline
from karpool.dashboard.pages.move_sentences import counted
from karpool.gpu.records.scale_up_record import MEANS, ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import moment
from karpool.provisioning.candidates.attempts import CandidateHistory
from karpool.provisioning.claims.claim_progress import ClaimProgress
from karpool.provisioning.placeholders.placeholder import INDEX, REQUEST

SHOWN_MAX = 300
GONE = "its record was deleted, because every worker is served or deleted"
UNITS_MAX = 20
# For each step, the stages of a unit during which it is in progress.
STEPS: tuple[tuple[str, tuple[ScaleUpState, ...]], ...] = (
    ("No device", ()),
    ("Smart pod", (ScaleUpState.CREATING,)),
    ("Claim", (ScaleUpState.PENDING,)),
    ("Machine", (ScaleUpState.LAUNCHING,)),
    ("Node", (ScaleUpState.REGISTERED,)),
    ("Devices", (ScaleUpState.DEVICE_WAIT, ScaleUpState.READY)),
    ("Retry", (ScaleUpState.HANDING_OFF, ScaleUpState.RETRYING)),
)


@dataclass(frozen=True, slots=True)
class ScaleUpTraces:
    """Objects of a cluster besides its records. Smart pods are by request and index."""

    smart_pods: Mapping[tuple[str, int], Pod] = field(default_factory=dict)
    claim: Callable[[str], ClaimProgress | None] = lambda name: None


def traces(pods: Iterable[Pod], claim: Callable[[str], ClaimProgress | None]) -> ScaleUpTraces:
    smart_pods = {}
    for pod in pods:
        request, index = pod.labels.get(REQUEST, ""), pod.labels.get(INDEX, "")
        if request and index.isdecimal() and len(index) < 10:
            smart_pods[request, int(index)] = pod
    return ScaleUpTraces(smart_pods, claim)


def scale_ups(
    clusters: Iterable[
        tuple[str, Iterable[tuple[ScaleUpRecord, float | None]], ScaleUpTraces, Iterable[str]]
    ],
    now: float,
) -> ScaleUpList:
    """Return running scale-ups first, the newest first.

    Each record comes with the time of its removal, or None.
    """
    items: list[ScaleUpRow] = []
    problems: list[str] = []
    for cluster, records, seen, unreadable in clusters:
        items += [scale_up(cluster, record, seen, ended_at) for record, ended_at in records]
        problems += [f"{cluster}: {text}" for text in unreadable]
    items.sort(key=lambda item: (item.over, -item.since, item.cluster, item.name))
    return ScaleUpList(
        at=now, items=items[:SHOWN_MAX], left_out=max(0, len(items) - SHOWN_MAX), problems=problems[:20]
    )


def scale_up(
    cluster: str, record: ScaleUpRecord, seen: ScaleUpTraces, ended_at: float | None = None
) -> ScaleUpRow:
    if ended_at is not None:
        record = _ended(record, ended_at)
    words = {unit.candidate: unit.about for unit in record.units if unit.about}
    # Units in progress are more informative than finished ones.
    units = sorted(record.units, key=lambda unit: (not unit.is_active, -unit.index))
    return ScaleUpRow(
        cluster=cluster,
        name=record.name,
        demand=str(record.key),
        pool=record.key.pool,
        model=record.key.model,
        state=record.state.value if ended_at is None else "Ended",
        means=MEANS[record.state] if ended_at is None else GONE,
        since=record.state_since,
        first_seen=record.first_seen,
        waiting=record.waiting,
        waiting_pods=list(record.demand),
        attempt=record.epoch,
        round=record.round + 1,
        over=record.state.is_terminal or ended_at is not None,
        ended_at=ended_at,
        units=[timeline(record, unit, seen) for unit in units[:UNITS_MAX]],
        units_left_out=max(0, len(units) - UNITS_MAX),
        tried=[_tried(record, words.get(key, key), tried) for key, tried in record.memory.items()],
        why=[*([GONE, "as it was last seen:"] if ended_at is not None else []), *_why(record)],
        next_attempt=record.next_attempt or None,
    )


def _ended(record: ScaleUpRecord, at: float) -> ScaleUpRecord:
    """Return a removed record with its units ended.

    The controller removes a record when all its pods are served or gone, often before its last state was
    seen.
    """
    units = tuple(
        replace(unit, stage=ScaleUpState.COMPLETED, since=at)
        if unit.stage in (ScaleUpState.HANDING_OFF, ScaleUpState.RETRYING) and not unit.ended
        else replace(unit, ended=LaunchReason.REMOVED)
        if unit.is_active
        else unit
        for unit in record.units
    )
    return replace(record, units=units, state_since=at, waiting=0)


def timeline(record: ScaleUpRecord, unit: ScaleUpUnit, seen: ScaleUpTraces) -> UnitTimeline:
    pod = seen.smart_pods.get((record.name, unit.index))
    progress = seen.claim(unit.claim) if unit.claim else None
    reached = _reached(record, unit, pod, progress)
    present = _present(unit)
    steps = [
        TimelineStep(
            name=name,
            state=_state(number, present, unit),
            at=reached.get(name) if number <= present else None,
            detail=_detail(name, unit, pod, progress) if number <= present else "",
        )
        for number, (name, _) in enumerate(STEPS)
    ]
    return UnitTimeline(
        index=unit.index,
        candidate=unit.about or unit.candidate,
        steps=steps,
        smart_pod=pod.metadata.key if pod is not None else "",
        claim=unit.claim,
        node=unit.node,
        ended=str(unit.ended or ""),
    )


def _present(unit: ScaleUpUnit) -> int:
    """Return the index of the current step; the number of steps when the unit is complete."""
    if unit.stage is ScaleUpState.COMPLETED:
        return len(STEPS)
    return next((number for number, (_, stages) in enumerate(STEPS) if unit.stage in stages), 0)


def _state(number: int, present: int, unit: ScaleUpUnit) -> str:
    if number < present:
        return "done"
    if number > present:
        return "waiting"
    return "failed" if unit.ended else "now"


def _reached(
    record: ScaleUpRecord, unit: ScaleUpUnit, pod: Pod | None, progress: ClaimProgress | None
) -> dict[str, float]:
    """Return when each step was done, where that is still known."""
    moments: dict[str, float | None] = {"No device": record.first_seen, "Smart pod": unit.started}
    if pod is not None:
        moments["Smart pod"] = moment(pod.metadata.creation_timestamp) or unit.started
    if progress is not None:
        moments["Claim"] = progress.created
        moments["Machine"] = progress.launched
        moments["Node"] = progress.registered
        moments["Devices"] = progress.initialized
    if unit.stage is ScaleUpState.COMPLETED:
        moments["Retry"] = unit.since
    return {name: at for name, at in moments.items() if at}


def _detail(name: str, unit: ScaleUpUnit, pod: Pod | None, progress: ClaimProgress | None) -> str:
    match name:
        case "Smart pod" if pod is not None:
            scheduled = condition(pod.status.conditions, "PodScheduled")
            said = scheduled.message if scheduled is not None and not pod.spec.node_name else ""
            return f"{pod.metadata.key}: {said}" if said else pod.metadata.key
        case "Claim":
            return unit.claim
        case "Machine" if progress is not None:
            return progress.message
        case "Node":
            return unit.node
        case "Devices" if unit.devices:
            return f"{unit.devices} expected"
        case "Retry" if unit.held:
            return f"reserved for {counted(len(unit.held), 'worker')}"
    return ""


def _tried(record: ScaleUpRecord, words: str, tried: CandidateHistory) -> TriedRow:
    again = "never" if tried.excluded else "next round" if tried.round >= record.round else "yes"
    return TriedRow(
        candidate=words, result=tried.last.value, times=tried.count, at=tried.last_at, again=again
    )


def _why(record: ScaleUpRecord) -> Iterable[str]:
    yield f"{record.state.value}: {MEANS[record.state]}"
    if record.reason or record.message:
        yield ": ".join(part for part in (record.reason, record.message) if part)
    yield f"attempt {record.epoch}, round {record.round + 1}; {counted(record.waiting, 'worker')} waiting"
    if record.bad_nodes:
        yield f"nodes without devices: {', '.join(record.bad_nodes)}"
