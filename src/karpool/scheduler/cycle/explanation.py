"""Renders a decision for people and for scripts: the same numbers, in sentences or as JSON.

Nothing is computed here. Every list is bounded by the number of clusters.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from karpool.scheduler.cycle.decision import (
    MANY,
    AffinityAttempt,
    ClusterAvailability,
    ClusterCandidate,
    EstimatePart,
    NotScheduled,
    ReplicaDivision,
    SchedulingDecision,
)
from karpool.wire.requests import RoomParts


def line(decision: SchedulingDecision) -> str:
    """One JSON object on one line, without the trace."""
    return msgspec.json.encode(document(decision, trace=False)).decode()


def document(decision: SchedulingDecision, *, trace: bool = True) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "binding": {"kind": decision.binding.kind, "name": str(decision.binding)},
        "mode": str(decision.mode),
        "reason": str(decision.reason),
        "message": decision.message,
        "clusters": None if decision.targets is None else [target.to_json() for target in decision.targets],
    }
    if decision.group:
        fields["affinityName"] = decision.group
    if decision.missing:
        fields["missing"] = decision.missing
    if trace:
        fields["attempts"] = [_attempt(attempt) for attempt in decision.attempts]
    return fields


def _attempt(attempt: AffinityAttempt) -> dict[str, Any]:
    return {
        "affinityName": attempt.group,
        "clusters": attempt.clusters,
        "refused": [
            {"cluster": refused.about, "plugin": refused.reason.value, "reason": refused.detail}
            for refused in attempt.refused
        ],
        "candidates": [_candidate(candidate) for candidate in attempt.candidates],
        "selected": [cluster_candidate.name for cluster_candidate in attempt.selection.chosen]
        if attempt.selection
        else None,
        "divisions": [_division(division) for division in attempt.divisions],
        "failure": attempt.failure.detail if attempt.failure else None,
    }


def _candidate(candidate: ClusterCandidate) -> dict[str, Any]:
    availability = candidate.availability
    return {
        "name": candidate.name,
        "tier": candidate.tier,
        "score": candidate.score,
        "available": candidate.available,
        "assigned": candidate.assigned,
        "source": availability.source if availability else None,
        "parts": [_part(part) for part in availability.parts] if availability else [],
        "price": candidate.price,
    }


def _part(part: EstimatePart) -> dict[str, Any]:
    fields = part._asdict()
    room = fields.pop("room")
    if room is not None and part.value is not None:
        existing = min(room.existing, part.value)
        fields |= {
            "existing": existing,
            "afterScaleUp": part.value - existing,
            "pricePerHour": room.price_per_hour,
            "unlimited": room.is_unlimited,
        }
    return fields


def _division(division: ReplicaDivision) -> dict[str, Any]:
    return {
        "tier": division.tier,
        "strategy": str(division.strategy),
        "action": division.action,
        "replicas": division.target,
        "weights": dict(division.weights),
        "leftOut": list(division.left_out),
        "kept": dict(division.kept),
        "result": dict(division.result),
        "missing": division.missing,
        "notes": list(division.notes),
    }


def text(decision: SchedulingDecision) -> str:
    """The decision step by step."""
    return "\n".join(_lines(decision))


def _lines(decision: SchedulingDecision) -> Iterator[str]:
    yield f"{decision.binding.kind} {decision.binding}, {decision.mode} mode"
    for attempt in decision.attempts:
        yield ""
        if attempt.group:
            yield f"affinity group {attempt.group}"
        yield from _attempt_lines(attempt)
    yield ""
    yield f"{decision.reason}: {decision.message}"
    if decision.targets is None:
        yield "result: unchanged"
    elif not decision.targets:
        yield "result: no cluster"
    else:
        yield f"result: {decision.shown_targets}"
    if decision.missing:
        yield f"{decision.missing} replicas are not placed yet"


def _attempt_lines(attempt: AffinityAttempt) -> Iterator[str]:
    yield f"filter: {len(attempt.candidates)} of {attempt.clusters} clusters may take it"
    yield from _refused_lines(attempt.refused)
    if attempt.candidates:
        yield "candidates, in order:"
        for candidate in attempt.candidates:
            yield from _candidate_lines(candidate)
    if attempt.selection is not None:
        chosen = ", ".join(cluster_candidate.name for cluster_candidate in attempt.selection.chosen)
        yield f"select: {chosen or 'none'}"
        yield from (f"  {note}" for note in attempt.selection.notes)
    for division in attempt.divisions:
        yield from _division_lines(division)
    if attempt.failure is not None:
        yield f"failed: {attempt.failure.detail}"


def _refused_lines(refused: Sequence[NotScheduled]) -> Iterator[str]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for refusal in refused:
        by_reason.setdefault((refusal.reason.value, refusal.detail), []).append(refusal.about)
    for (plugin, reason), names in by_reason.items():
        yield f"  {', '.join(names)}: {reason} ({plugin})"


def _candidate_lines(candidate: ClusterCandidate) -> Iterator[str]:
    facts = [f"score {candidate.score}", f"room for {_amount(candidate.available)} more"]
    if candidate.assigned:
        facts.append(f"has {candidate.assigned}")
    if candidate.tier:
        facts.append(f"tier {candidate.tier}")
    if candidate.price is not None:
        facts.append(f"price {candidate.price:g}")
    yield f"  {candidate.name}: {', '.join(facts)}"
    if candidate.availability is not None:
        yield from (f"    {part}" for part in _parts(candidate.availability))


def _parts(availability: ClusterAvailability) -> Iterator[str]:
    for part in availability.parts:
        value = "unknown" if part.value is None else _amount(part.value)
        mark = ", counts" if part.source == availability.source else ""
        yield f"{part.source}: {value}{mark}{f' ({part.note})' if part.note else ''}"
        if part.room is not None and part.value is not None:
            yield f"  {_split(part.value, part.room)}"


def _split(value: int, room: RoomParts) -> str:
    """The existing capacity, and what a scale-up would add, at which price."""
    existing = min(room.existing, value)
    more = value - existing
    facts = f"{_amount(existing)} on existing nodes, {_amount(more)} after scale-up"
    if not more:
        return facts
    price = "price not known" if room.price_per_hour is None else f"{room.price_per_hour:.4g} USD/h each"
    return f"{facts} ({price}{', pools without limits' if room.is_unlimited else ''})"


def _division_lines(division: ReplicaDivision) -> Iterator[str]:
    tier = f" in tier {division.tier}" if division.tier else ""
    yield f"divide{tier}: {division.strategy}, {division.action}, {division.target} replicas"
    if division.kept:
        yield f"  kept: {_pairs(division.kept)}"
    if division.weights:
        yield f"  weights: {_pairs(division.weights)}"
    if division.left_out:
        yield f"  not needed: {', '.join(division.left_out)}"
    yield from (f"  {note}" for note in division.notes)
    yield f"  gives {_pairs(division.result) or 'nothing'}"
    if division.missing:
        yield f"  {division.missing} have no place"


def _pairs(pairs: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {_amount(value)}" for name, value in pairs)


def _amount(value: float) -> str:
    return "any number" if value >= MANY else f"{value:g}" if isinstance(value, float) else str(value)
