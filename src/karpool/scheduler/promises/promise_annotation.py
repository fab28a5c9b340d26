"""Stores promises in an annotation, in the same patch as the decision.

So the API server never has a decision without its promise, and the next leader reads both. The record carries
a digest of its targets. If others changed the targets since, and for bindings of other schedulers, everything
that was scheduled recently counts as promised until it is seen to have landed. An unreadable record is
ignored. Records contain ages, not times, because clocks differ.
"""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from karpool.model.karmada.binding import Binding
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.scheduler.promises.promise import Amounts

PROMISES = "karpool.dev/promises"
_BYTES_MAX = 128 * 1024  # all annotations of an object together may have 256 KiB
_INCREMENTS_MAX = 16  # per cluster; more are summed up


class RecordedPromise(NamedTuple):
    """The promises in one cluster, each with its age in seconds, oldest first.

    `shrank`: the workload shrank there a moment ago, so that counts of its pods prove nothing yet.
    """

    increments: tuple[tuple[Amounts, float], ...]
    shrank: bool = False


class _Record(msgspec.Struct, frozen=True):
    version: int
    targets: str
    clusters: dict[str, list[tuple[list[int], int]]] = {}
    shrank: list[str] = []


def write(recorded: Mapping[str, RecordedPromise], desired: Mapping[str, Amounts], wall: float) -> str | None:
    """The annotation; None if it would be too large: the next reader then assumes the worst."""
    record = _Record(
        1,
        digest(desired),
        {name: _merged(promise, wall) for name, promise in sorted(recorded.items()) if promise.increments},
        sorted(name for name, promise in recorded.items() if promise.shrank),
    )
    text = msgspec.json.encode(record)
    return text.decode() if len(text) <= _BYTES_MAX else None


def read(
    binding: Binding, desired: Mapping[str, Amounts], wall: float, lifetime_seconds: float
) -> dict[str, RecordedPromise]:
    """What may still be in flight, by cluster. Never more than desired."""
    record = _decode(binding.annotations.get(PROMISES))
    if record is None:
        return _lately_scheduled(binding, desired, wall, lifetime_seconds)
    promises = _recorded(record, desired, wall, lifetime_seconds)
    if record.targets != digest(desired):
        others = {name: replicas for name, replicas in desired.items() if name not in record.clusters}
        promises |= _lately_scheduled(binding, others, wall, lifetime_seconds)
    return promises


def digest(desired: Mapping[str, Amounts]) -> str:
    text = msgspec.json.encode(sorted(desired.items()))
    return f"{zlib.crc32(text):08x}"


def _merged(recorded: RecordedPromise, wall: float) -> list[tuple[list[int], int]]:
    entries = [(list(amounts), int(wall - age)) for amounts, age in recorded.increments]
    if len(entries) <= _INCREMENTS_MAX:
        return entries
    # Summed up with the time of the youngest: held too long rather than lost.
    early = entries[: len(entries) - _INCREMENTS_MAX + 1]
    summed = [sum(column) for column in zip(*(amounts for amounts, _ in early), strict=True)]
    return [(summed, early[-1][1]), *entries[len(early) :]]


def _decode(text: str | None) -> _Record | None:
    if not text or len(text) > _BYTES_MAX:
        return None
    try:
        record = msgspec.json.decode(text, type=_Record)
    except (msgspec.DecodeError, RecursionError):
        return None
    return record if record.version == 1 else None


def _recorded(
    record: _Record, desired: Mapping[str, Amounts], wall: float, lifetime_seconds: float
) -> dict[str, RecordedPromise]:
    promises = {cluster: RecordedPromise((), True) for cluster in record.shrank}
    for cluster, entries in record.clusters.items():
        limit = desired.get(cluster)
        if limit is None or any(len(amounts) != len(limit) for amounts, _ in entries):
            continue
        open_amounts = list(limit)
        increments: list[tuple[Amounts, float]] = []
        for amounts, made in reversed(entries):
            age = max(0.0, wall - made)
            clipped = tuple(max(0, min(have, most)) for have, most in zip(amounts, open_amounts, strict=True))
            open_amounts = [most - have for most, have in zip(open_amounts, clipped, strict=True)]
            if any(clipped) and age < lifetime_seconds:
                increments.append((clipped, age))
        if increments:
            promises[cluster] = RecordedPromise(tuple(reversed(increments)), cluster in record.shrank)
    return promises


def _lately_scheduled(
    binding: Binding, desired: Mapping[str, Amounts], wall: float, lifetime_seconds: float
) -> dict[str, RecordedPromise]:
    age = 0.0  # a result without a time counts as just written
    if binding.last_scheduled_time:
        try:
            age = max(0.0, wall - parse_rfc3339(binding.last_scheduled_time))
        except ValueError:
            age = 0.0
    if age >= lifetime_seconds:
        return {}
    return {name: RecordedPromise(((amounts, age),)) for name, amounts in desired.items() if any(amounts)}
