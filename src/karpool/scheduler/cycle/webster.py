"""Divides seats in proportion to weights: Webster's method, as Karmada uses it.

Seats go one by one to the participant with the largest weight / (2 * seats + 1); on equal quotients to the
one with fewer seats, then by name, in an order that depends on the workload's uid. More seats never take one
away. Quotients are IEEE doubles, as in Karmada, so equal fractions are equal.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193
_WORD = 0xFFFFFFFF

Weight = int | float
Entry = tuple[float, int, int]  # minus the quotient, seats, rank: the smallest is served next


@lru_cache(maxsize=65536)
def prefers_last(uid: str) -> bool:
    """Whether ties go to the last name: the FNV-1a hash of the uid is odd."""
    if not uid:
        return False
    number = _FNV_OFFSET
    for byte in uid.encode("utf-8", "surrogatepass"):
        number = ((number ^ byte) * _FNV_PRIME) & _WORD
    return number % 2 == 1


def divide(
    seats: int,
    weights: Mapping[str, Weight],
    held: Mapping[str, int] | None = None,
    uid: str = "",
    *,
    first: Sequence[str] = (),
) -> dict[str, int]:
    """Seats by name, sorted; held seats are included, and zeros are kept.

    Weights that sum to 0 get nothing. `first` names go first if all else is equal. O(participants x log),
    however many seats.
    """
    have = held or {}
    names = sorted({*weights, *have} if have else weights)
    shares = [max(weights.get(name, 0), 0) for name in names]
    counts = [max(have.get(name, 0), 0) for name in names] if have else [0] * len(names)
    if seats > 0 and any(shares):
        open_seats = seats - _head_start(seats, shares, counts)
        _one_by_one(open_seats, shares, counts, _ranks(names, uid, first))
    return dict(zip(names, counts, strict=True))


def divide_capped(
    seats: int,
    weights: Mapping[str, Weight],
    caps: Mapping[str, int],
    uid: str = "",
    *,
    first: Sequence[str] = (),
) -> dict[str, int]:
    """Like `divide`, but limited by a cap per name; seats beyond all caps stay undivided."""
    result: dict[str, int] = {}
    open_weights = dict(weights)
    open_seats = min(seats, sum(max(caps.get(name, 0), 0) for name, weight in weights.items() if weight > 0))
    while True:
        shares = divide(open_seats, open_weights, uid=uid, first=first)
        full = {name: max(caps.get(name, 0), 0) for name in shares if shares[name] > caps.get(name, 0)}
        if not full:
            return dict(sorted({**result, **shares}.items()))
        # A participant that is full now would also be full with more seats.
        result |= full
        open_seats -= sum(full.values())
        open_weights = {name: weight for name, weight in open_weights.items() if name not in full}


def _ranks(names: Sequence[str], uid: str, first: Sequence[str]) -> Sequence[int]:
    """The order on a tie: names are sorted, so their positions are enough."""
    size = len(names)
    plain = range(size, 0, -1) if prefers_last(uid) else range(size)
    if not first:
        return plain
    favoured = {name: position - len(first) for position, name in enumerate(first)}
    return [favoured.get(name, rank) for name, rank in zip(names, plain, strict=True)]


def _head_start(seats: int, shares: Sequence[Weight], counts: list[int]) -> int:
    """Give out at once the seats that are certain; return their number.

    With divisor d, every seat whose quotient is above d is served before any other. There are at most W / 2d
    + k/2 of those among k participants of total weight W, so a d that makes this sum at most `seats` (and one
    less, for rounding) never gives out too many, and few are left.
    """
    active = [index for index, share in enumerate(shares) if share > 0]
    aim = seats - len(active) / 2 - 1
    if aim <= 0:
        return 0
    if any(counts):
        aim += _held_above(seats, aim, shares, counts, active)
    divisor = sum(shares[index] for index in active) / (2 * aim)
    handed_out = 0
    for index in active:
        share, count = shares[index], counts[index]
        reached = int((share / divisor + 1) / 2)
        if reached > count:
            if share / (2 * reached - 1) <= divisor:  # the formula's own rounding
                reached -= 1
            if reached > count:
                counts[index] = reached
                handed_out += reached - count
    return handed_out


def _held_above(
    seats: int, aim: float, shares: Sequence[Weight], counts: Sequence[int], active: Sequence[int]
) -> float:
    """How much further the divisor may be lowered because of held seats.

    By bisection: held seats count towards a participant's part; seats held beyond it do not.
    """
    total = sum(shares[index] for index in active)
    low, high = 0.0, float(sum(counts[index] for index in active))
    room = seats - len(active) / 2 - 1
    for _ in range(64):
        if high - low < 1:
            break
        middle = (low + high) / 2
        scale = (aim + middle) / total
        needed = sum(max(shares[index] * scale - counts[index], 0) for index in active)
        low, high = (middle, high) if needed <= room else (low, middle)
    return low


def _one_by_one(seats: int, shares: Sequence[Weight], counts: list[int], ranks: Sequence[int]) -> None:
    if seats <= 0:
        return
    places = {rank: index for index, rank in enumerate(ranks) if shares[index] > 0}
    heap: list[Entry] = [
        (-(shares[index] / (2 * counts[index] + 1)), counts[index], rank) for rank, index in places.items()
    ]
    heapify(heap)
    for _ in range(seats):
        _, count, rank = heap[0]
        index = places[rank]
        count += 1
        counts[index] = count
        heapreplace(heap, (-(shares[index] / (2 * count + 1)), count, rank))
