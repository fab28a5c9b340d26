"""Chooses the next candidate from the results of earlier attempts. Pure.

Within a round every candidate is tried once, in order. A candidate that is out of stock rests for three
minutes, no matter which request found that out. A candidate that led to the wrong node, or that the
autoscaler can never serve, is excluded for the life of the request. When all candidates are used, the round
is over, and after a long wait the next round starts with the first candidate. The memory is a plain value
that the caller stores with its record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.cluster.market.failures import LaunchFailure, LaunchFailures
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.packing.new_nodes.offerings import PoolOfferings, StockOut
from karpool.provisioning.candidates.ladder import sold_by
from karpool.provisioning.node_request import NodeCandidate

STOCK_REST_SECONDS = 180.0
ROUND_REST_SECONDS = 300.0
FIRST_SECONDS = 30.0
LONGEST_SECONDS = 600.0


_FORGIVEN_ONCE = frozenset((LaunchReason.CLAIM_LOST, LaunchReason.INTERRUPTED))
_EXCLUDING = frozenset((LaunchReason.AUTOSCALER_REFUSED, LaunchReason.WRONG_NODE))


def setback_of(ending: LaunchReason) -> LaunchReason:
    """Return what the end of a claim means for the attempt that requested it."""
    return LaunchReason.INTERRUPTED if ending is LaunchReason.REMOVED else ending


@dataclass(frozen=True, slots=True)
class CandidateHistory:
    """The record of one candidate."""

    count: int
    last_at: float
    last: LaunchReason
    round: int  # the round that last used it up; -1: none
    excluded: bool = False


Memory = Mapping[str, CandidateHistory]  # by Candidate.key


def remember(
    memory: Memory, candidate: str, setback: LaunchReason, *, round_number: int, now: float
) -> dict[str, CandidateHistory]:
    """Return the memory after one more failure."""
    before = memory.get(candidate)
    count = 1 if before is None else before.count + 1
    forgiven = setback in _FORGIVEN_ONCE and count == 1
    spent = (before.round if before is not None else -1) if forgiven else round_number
    excluded = setback in _EXCLUDING or (before is not None and before.excluded)
    return {**memory, candidate: CandidateHistory(count, now, setback, spent, excluded)}


def new_round(memory: Memory) -> dict[str, CandidateHistory]:
    """Return the memory for a new round: counts start again, exclusions stay."""
    return {key: replace(tried, count=0) for key, tried in memory.items() if tried.excluded}


@dataclass(frozen=True, slots=True)
class TryCandidate:
    index: int
    candidate: NodeCandidate


@dataclass(frozen=True, slots=True)
class CandidatesResting:
    """No candidate can be tried before `until`; `reason` says which ones rest."""

    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class RoundExhausted:
    """The round is over; the next one may start at `until`."""

    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class NoCandidateLeft:
    """Every candidate is excluded; another request changes nothing."""

    reason: str


Choice = TryCandidate | CandidatesResting | RoundExhausted | NoCandidateLeft


def next_candidate(
    candidates: Sequence[NodeCandidate],
    memory: Memory,
    *,
    round_number: int,
    now: float,
    resting: Mapping[str, float] | None = None,
) -> Choice:
    """Return the candidate to try, or when to try again.

    `resting` holds by key until when candidates rest that other requests found out of stock.
    """
    rests = resting or {}
    usable = [
        (index, candidate)
        for index, candidate in enumerate(candidates)
        if not _is_excluded(memory, candidate)
    ]
    if not usable:
        return NoCandidateLeft(_last_words(candidates, memory) or "there is no candidate")
    fresh = [
        (index, candidate) for index, candidate in usable if not _is_spent(memory, candidate, round_number)
    ]
    if not fresh:
        last = max(memory[candidate.key].last_at for _, candidate in usable)
        return RoundExhausted(
            last + ROUND_REST_SECONDS, _last_words([candidate for _, candidate in usable], memory)
        )
    ready = {
        index: _ready_at(memory.get(candidate.key), rests.get(candidate.key)) for index, candidate in fresh
    }
    for index, candidate in fresh:
        if ready[index] <= now:
            return TryCandidate(index, candidate)
    soonest, candidate = min(fresh, key=lambda pair: (ready[pair[0]], pair[0]))
    return CandidatesResting(ready[soonest], f"{candidate} is out of stock")


def _ready_at(tried: CandidateHistory | None, rest: float | None) -> float:
    own = (
        tried.last_at + STOCK_REST_SECONDS
        if tried is not None and tried.last is LaunchReason.STOCK_OUT
        else 0.0
    )
    return max(own, rest or 0.0)


def _is_excluded(memory: Memory, candidate: NodeCandidate) -> bool:
    tried = memory.get(candidate.key)
    return tried is not None and tried.excluded


def _is_spent(memory: Memory, candidate: NodeCandidate, round_number: int) -> bool:
    tried = memory.get(candidate.key)
    return tried is not None and tried.round >= round_number


def _last_words(candidates: Sequence[NodeCandidate], memory: Memory) -> str:
    remembered = [(candidate, memory[candidate.key]) for candidate in candidates if candidate.key in memory]
    return "; ".join(f"{candidate}: {tried.last.value}" for candidate, tried in remembered[:5])


def attempt_delay_seconds(failures: int, draw: float) -> float:
    """Return the seconds between attempts of one request: exponential, capped, with full jitter."""
    whole = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(max(failures, 1) - 1, 30))
    return whole * draw


def resting_until(
    candidates: Sequence[NodeCandidate],
    offered: Mapping[str, PoolOfferings],
    failures: LaunchFailures,
    now: float,
) -> dict[str, float]:
    """Return until when each candidate rests that is out of stock with all offerings in all pools."""
    out = sorted(failures.of_offers(now), key=lambda failure: failure.until)
    broken = {pool: failures.of_pool(pool, now) for pool in offered}
    waits: dict[str, float] = {}
    for candidate in candidates:
        until = _rests_until(candidate, offered, out, broken)
        if until is not None:
            waits[candidate.key] = until
    return waits


def _rests_until(
    candidate: NodeCandidate,
    offered: Mapping[str, PoolOfferings],
    out: Sequence[LaunchFailure],
    broken: Mapping[str, LaunchFailure | None],
) -> float | None:
    ends: list[float] = []
    for pool in candidate.pools or tuple(offered):
        if pool not in offered:
            continue
        if (failure := broken.get(pool)) is not None:
            ends.append(failure.until)
            continue
        until = _out_until(candidate, offered[pool], out)
        if until is None:
            return None
        ends.append(until)
    return min(ends, default=None)


def _out_until(
    candidate: NodeCandidate, offered: PoolOfferings, out: Sequence[LaunchFailure]
) -> float | None:
    """Return until when the candidate is out of stock; None if any offering is in stock or none exists."""
    sold = sold_by(candidate, offered)
    if not out or not sold.any():
        return None
    stock_outs = [
        StockOut(*(part or None for part in launch_failure.offer))
        for launch_failure in out
        if launch_failure.offer is not None
    ]
    if (sold & offered.stock(stock_outs)).any():
        return None
    for number, failure in enumerate(out):
        # Failures expire one by one; the rest ends with the first expiry that makes an offering available.
        left = stock_outs[number + 1 :]
        if (sold & offered.stock(left)).any():
            return failure.until
    return None
