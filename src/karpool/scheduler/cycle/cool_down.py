"""Keeps replicas that were taken off a cluster from going straight back there.

The descheduler writes on the binding, in the patch that removes the replicas, which cluster they came from
and until when it is excluded. The scheduler then counts no further capacity there for this binding. The
annotation is bounded. An unreadable one is ignored: the worst result is a second attempt at the same cluster.
"""

from collections.abc import Mapping

import msgspec

from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool.scheduler.cycle.decision import ClusterAvailability, EstimatePart

ANNOTATION = "karpool.dev/descheduled"
SOURCE = "cool-down"
ENTRIES_MAX = 1000


class _Note(msgspec.Struct, omit_defaults=True):
    until: str
    replicas: int = 0


def cooling(annotations: Mapping[str, str], now: float) -> dict[str, float]:
    """Excluded clusters, with the remaining seconds."""
    notes = _read(annotations)
    seconds_by_cluster = {name: _seconds(note.until) - now for name, note in notes.items()}
    return {name: seconds for name, seconds in seconds_by_cluster.items() if seconds > 0}


def noted(
    annotations: Mapping[str, str], replicas_by_cluster: Mapping[str, int], now: float, seconds: float
) -> str:
    """The annotation after replicas left these clusters; expired entries are dropped."""
    notes = {name: note for name, note in _read(annotations).items() if _seconds(note.until) > now}
    notes |= {name: _Note(rfc3339(now + seconds), replicas) for name, replicas in replicas_by_cluster.items()}
    return msgspec.json.encode(dict(sorted(notes.items()))).decode()


def without_room(
    availability_by_cluster: Mapping[str, ClusterAvailability], cooling_seconds: Mapping[str, float]
) -> dict[str, ClusterAvailability]:
    """The availability with no capacity in the excluded clusters."""
    return {
        name: _nothing(availability, cooling_seconds[name])
        if name in cooling_seconds and availability.replicas > 0
        else availability
        for name, availability in availability_by_cluster.items()
    }


def _nothing(availability: ClusterAvailability, cooling_seconds: float) -> ClusterAvailability:
    note = f"replicas were removed from here because they could not start; {cooling_seconds:.0f} s left"
    return ClusterAvailability(0, SOURCE, (*availability.parts, EstimatePart(SOURCE, 0, note)))


def _read(annotations: Mapping[str, str]) -> dict[str, _Note]:
    text = annotations.get(ANNOTATION)
    if not text:
        return {}
    try:
        notes = msgspec.json.decode(text, type=dict[str, _Note])
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return notes if len(notes) <= ENTRIES_MAX else {}


def _seconds(text: str) -> float:
    try:
        return parse_rfc3339(text)
    except (ValueError, OverflowError):
        return 0.0
