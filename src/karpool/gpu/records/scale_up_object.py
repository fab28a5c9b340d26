"""Converts records to and from API objects: ScaleUp (gpu.karpool.dev/v1alpha1), and its definition.

The spec is the demand key and never changes; everything else is status, written as a whole with the
resourceVersion that was read. A status is validated like any other input: an unreadable one is reported and
starts again, above every epoch in use.
"""

from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import msgspec
import yaml

from karpool.cluster.market.launch_reasons import ATTEMPT_REASONS, LaunchReason
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_record import STAGES, ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.meta import Int32, Int64, OwnerReference, Wire, WireObject, decode
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339_micro
from karpool.provisioning.candidates.attempts import CandidateHistory

GROUP, VERSION = "gpu.karpool.dev", "v1alpha1"
SCALEUPS = ApiResource(GROUP, VERSION, "scaleups", "ScaleUp")
UNITS_MAX = 1000
Object = dict[str, Any]
Kind = TypeVar("Kind", bound=StrEnum)


class ScaleUpSpec(Wire, frozen=True):
    pool: str = ""
    model: str = ""
    gpus: Int32 = 1
    vram_gib: Int64 = msgspec.field(default=0, name="vramGiB")
    tflops: Int64 = 0
    percent_milli: Int64 = 0
    vram_percent_milli: Int64 = 0
    isolation: str = ""
    template: str = ""
    vendor: str = ""
    constraints: str = ""
    system: str = ""


class UnitStatus(Wire, frozen=True):
    index: Int32 = 0
    gpus: Int32 = 0
    cpu_milli: Int64 = 0
    memory_bytes: Int64 = 0
    candidate: str = ""
    stage: str = ""
    since: str = ""
    started: str = ""
    claim: str = ""
    node: str = ""
    held: list[str] | None = None
    ended: str = ""
    devices: Int32 = 0
    tflops_milli: Int64 = 0
    vram_bytes: Int64 = 0
    about: str = ""


class CandidateStatus(Wire, frozen=True):
    count: Int32 = 0
    last_at: str = ""
    last: str = ""
    round: Int32 = -1
    excluded: bool = False


class ScaleUpStatus(Wire, frozen=True):
    state: str = ""
    reason: str = ""
    message: str = ""
    epoch: Int64 = 0
    round: Int32 = 0
    attempts: Int32 = 0
    first_seen: str = ""
    state_since: str = ""
    attempt_started: str = ""
    next_attempt_at: str = ""
    units: list[UnitStatus] | None = None
    failures: dict[str, CandidateStatus] | None = None
    bad_nodes: list[str] | None = None
    nodes: list[str] | None = None
    readiness_epoch: Int64 = 0
    retried: dict[str, Int64] | None = None
    waiting: Int32 = 0
    demand: list[str] | None = None


class ScaleUp(WireObject, frozen=True):
    spec: ScaleUpSpec = ScaleUpSpec()
    status: ScaleUpStatus | None = None


@cache
def _definition() -> str:
    return resources.files("karpool.gpu").joinpath("data", "scaleups.yaml").read_text(encoding="utf-8")


def definition() -> Object:
    """A copy of the CustomResourceDefinition of ScaleUps."""
    manifest: Object = yaml.safe_load(_definition())
    return manifest


def to_object(record: ScaleUpRecord, namespace: str) -> Object:
    """The object to create; the API server ignores a status then."""
    key = record.key
    spec = ScaleUpSpec(
        pool=key.pool,
        model=key.model,
        gpus=key.gpus,
        vram_gib=key.vram_gib,
        tflops=key.tflops,
        percent_milli=key.percent_milli,
        vram_percent_milli=key.vram_percent_milli,
        isolation=key.isolation,
        template=key.template,
        vendor=key.vendor,
        constraints=key.constraints,
        system=key.system,
    )
    return {
        "metadata": {
            "name": record.name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "karpool"},
        },
        "spec": msgspec.to_builtins(spec),
    }


def to_status(record: ScaleUpRecord) -> Object:
    status = ScaleUpStatus(
        state=record.state.value,
        reason=record.reason,
        message=record.message[:1024],
        epoch=record.epoch,
        round=record.round,
        attempts=record.attempts,
        first_seen=_written(record.first_seen),
        state_since=_written(record.state_since),
        attempt_started=_written(record.attempt_started),
        next_attempt_at=_written(record.next_attempt),
        units=[_unit_status(unit) for unit in record.units],
        failures={
            key: CandidateStatus(
                count=tried.count,
                last_at=_written(tried.last_at),
                last=tried.last.value,
                round=tried.round,
                excluded=tried.excluded,
            )
            for key, tried in record.memory.items()
        },
        bad_nodes=list(record.bad_nodes),
        nodes=list(record.nodes),
        readiness_epoch=record.readiness_epoch,
        retried=dict(record.retried),
        waiting=record.waiting,
        demand=list(record.demand),
    )
    fields: Object = msgspec.to_builtins(status)
    return fields


def _unit_status(unit: ScaleUpUnit) -> UnitStatus:
    return UnitStatus(
        index=unit.index,
        gpus=unit.gpus,
        cpu_milli=unit.cpu_milli,
        memory_bytes=unit.memory_bytes,
        candidate=unit.candidate,
        stage=unit.stage.value,
        since=_written(unit.since),
        started=_written(unit.started),
        claim=unit.claim,
        node=unit.node,
        held=list(unit.held),
        ended=str(unit.ended or ""),
        devices=unit.devices,
        tflops_milli=unit.tflops_milli,
        vram_bytes=unit.vram_bytes,
        about=unit.about,
    )


def from_object(raw: Object) -> ScaleUpRecord:
    """Raises Invalid naming the field. A record without a status is Buffered."""
    return from_scale_up(decode(raw, ScaleUp))


def from_scale_up(scale_up: ScaleUp) -> ScaleUpRecord:
    spec, meta = scale_up.spec, scale_up.metadata
    key = DemandKey(
        spec.pool,
        spec.model,
        spec.gpus,
        spec.vram_gib,
        spec.tflops,
        spec.percent_milli,
        spec.vram_percent_milli,
        spec.isolation,
        spec.template,
        spec.vendor,
        spec.constraints,
        spec.system,
    )
    if key.name != meta.name:
        raise Invalid("spec", meta.name, f"does not belong to this name but to {key.name}; delete the object")
    created = _read("metadata.creationTimestamp", meta.creation_timestamp or "")
    new = ScaleUpRecord(key, ScaleUpState.BUFFERED, created, created, meta.uid, meta.resource_version)
    return new if scale_up.status is None or not scale_up.status.state else _with_status(new, scale_up.status)


def without_status(scale_up: ScaleUp) -> ScaleUpRecord:
    """The record as if it had just begun, for a status that cannot be read."""
    return from_scale_up(ScaleUp(metadata=scale_up.metadata, spec=scale_up.spec))


def _with_status(new: ScaleUpRecord, status: ScaleUpStatus) -> ScaleUpRecord:
    if len(status.units or ()) > UNITS_MAX:
        raise Invalid("status.units", len(status.units or ()), f"are more than {UNITS_MAX}")
    return ScaleUpRecord(
        key=new.key,
        state=_one_of("status.state", status.state, ScaleUpState),
        first_seen=_read("status.firstSeen", status.first_seen),
        state_since=_read("status.stateSince", status.state_since),
        uid=new.uid,
        version=new.version,
        epoch=_positive("status.epoch", status.epoch),
        reason=status.reason,
        message=status.message,
        round=status.round,
        attempts=status.attempts,
        attempt_started=_read("status.attemptStarted", status.attempt_started),
        next_attempt=_read("status.nextAttemptAt", status.next_attempt_at),
        units=tuple(_unit(number, unit) for number, unit in enumerate(status.units or ())),
        memory={
            key: CandidateHistory(
                tried.count,
                _read(f"status.failures.{key}.lastAt", tried.last_at),
                _attempt_reason(f"status.failures.{key}.last", tried.last),
                tried.round,
                tried.excluded,
            )
            for key, tried in (status.failures or {}).items()
        },
        bad_nodes=tuple(status.bad_nodes or ()),
        readiness_epoch=status.readiness_epoch,
        retried=dict(status.retried or {}),
        waiting=status.waiting,
        demand=tuple(status.demand or ()),
    )


def _attempt_reason(path: str, value: str, *others: LaunchReason) -> LaunchReason:
    allowed = (*ATTEMPT_REASONS, *others)
    if value not in allowed:
        raise Invalid(path, value, f"must be one of {', '.join(allowed)}")
    return LaunchReason(value)


def _unit(number: int, unit: UnitStatus) -> ScaleUpUnit:
    path = f"status.units[{number}]"
    stage = _one_of(f"{path}.stage", unit.stage, ScaleUpState)
    if stage not in STAGES:
        raise Invalid(f"{path}.stage", unit.stage, "is not a stage of a unit")
    ended = None
    if unit.ended:
        ended = _attempt_reason(f"{path}.ended", unit.ended, LaunchReason.SURPLUS)
    return ScaleUpUnit(
        _positive(f"{path}.index", unit.index),
        _positive(f"{path}.gpus", unit.gpus),
        _positive(f"{path}.cpuMilli", unit.cpu_milli),
        _positive(f"{path}.memoryBytes", unit.memory_bytes),
        unit.candidate,
        stage,
        _read(f"{path}.since", unit.since),
        _read(f"{path}.started", unit.started),
        unit.claim,
        unit.node,
        tuple(unit.held or ()),
        ended,
        _positive(f"{path}.devices", unit.devices),
        _positive(f"{path}.tflopsMilli", unit.tflops_milli),
        _positive(f"{path}.vramBytes", unit.vram_bytes),
        unit.about,
    )


def owner(record: ScaleUpRecord) -> OwnerReference:
    """The owner reference for objects of a record, so that they are deleted with it."""
    return OwnerReference(
        api_version=SCALEUPS.api_version,
        kind=SCALEUPS.kind,
        name=record.name,
        uid=record.uid,
        controller=True,
    )


def _written(seconds: float) -> str:
    return rfc3339_micro(seconds) if seconds else ""


def _read(path: str, text: str) -> float:
    if not text:
        return 0.0
    try:
        return parse_rfc3339(text)
    except (ValueError, OverflowError):
        raise Invalid(path, text, "is not a time like 2026-01-01T00:00:00.000000Z") from None


def _positive(path: str, value: int) -> int:
    if value < 0:
        raise Invalid(path, value, "must not be negative")
    return value


def _one_of(path: str, value: str, kind: type[Kind]) -> Kind:
    try:
        return kind(value)
    except ValueError:
        raise Invalid(path, value, f"must be one of {', '.join(kind)}") from None
