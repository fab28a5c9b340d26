"""One pod after another onto the first node that is open, in about logarithmic time per pod.

Counts only rise while pods are placed, and so does the least count of each spread
constraint. A node or a kind of node that is closed therefore stays closed until the
least has reached a known level, and need not be looked at before.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.topology.domains import NOWHERE

# Far more pods than a cluster holds; a walk ends here rather than never.
STEPS_MAX = 1_000_000


@dataclass(slots=True, eq=False)
class SpreadState:
    """A spread constraint that each placed pod shifts. Arrays are per candidate node, in order."""

    counts: Int64s  # by domain
    codes: Int64s
    eligible: Bools | None  # candidates whose pods count; None: all
    domains: Int64s  # that the least is taken over
    max_skew: int
    enough_domains: bool

    def least(self) -> int:
        return int(self.counts[self.domains].min()) if self.enough_domains and len(self.domains) else 0


@dataclass(slots=True, eq=False)
class SelfAntiAffinity:
    """An anti-affinity towards one's own kind: a domain takes one pod."""

    used: Bools  # by domain
    codes: Int64s


@dataclass(slots=True, eq=False)
class _Level:
    """A spread constraint with its least, and who waits for it to rise."""

    counts: list[int]
    eligible: list[bool] | None
    max_skew: int
    codes: list[int]
    least: int
    at: dict[int, int]  # how many domains have each count; empty: the least is 0 for good
    in_least: frozenset[int]
    waiting: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def closed(self, code: int) -> bool:
        return code == NOWHERE or self.counts[code] >= self.max_skew + self.least

    def wait(self, code: int, who: int) -> None:
        if code != NOWHERE:
            self.waiting[self.counts[code] - self.max_skew + 1].append(who)

    def add(self, position: int) -> list[int]:
        """Count a pod on a candidate; returns whoever need no longer wait."""
        if self.eligible is not None and not self.eligible[position]:
            return []
        code = self.codes[position]
        before = self.counts[code]
        self.counts[code] = before + 1
        if not self.at or code not in self.in_least:
            return []
        self.at[before] -= 1
        self.at[before + 1] = self.at.get(before + 1, 0) + 1
        released: list[int] = []
        while not self.at.get(self.least):
            self.least += 1
            released += self.waiting.pop(self.least, ())
        return released


def _level(spread: SpreadState) -> _Level:
    counts = spread.counts.tolist()
    at: dict[int, int] = {}
    if spread.enough_domains:
        for code in spread.domains.tolist():
            at[counts[code]] = at.get(counts[code], 0) + 1
    return _Level(
        counts,
        None if spread.eligible is None else spread.eligible.tolist(),
        spread.max_skew,
        spread.codes.tolist(),
        min(at, default=0),
        at,
        frozenset(spread.domains.tolist()),
    )


class SpreadWalk:
    """Candidates are grouped by the domains they share; each group offers its first open node."""

    def __init__(
        self, room: Int64s, spreads: Sequence[SpreadState], apart: Sequence[SelfAntiAffinity]
    ) -> None:
        self._room = room.tolist()
        self.taken = [0] * len(self._room)
        shared = [_is_shared(spread.codes, room) for spread in spreads]
        self._fine = [_level(spread) for spread, coarse in zip(spreads, shared, strict=True) if not coarse]
        self._coarse = [_level(spread) for spread, coarse in zip(spreads, shared, strict=True) if coarse]
        self._apart = [(affinity.used.tolist(), affinity.codes.tolist()) for affinity in apart]
        kinds: dict[tuple[int, ...], int] = {}
        columns = [level.codes for level in self._coarse] + [codes for _, codes in self._apart]
        self._kind = (
            [kinds.setdefault(key, len(kinds)) for key in zip(*columns, strict=True)] if columns else []
        )
        self._kind = self._kind or [0] * len(self._room)
        self._nodes: list[list[int]] = [[] for _ in range(max(len(kinds), 1))]
        for position, free in enumerate(self._room):
            if free > 0:
                self._nodes[self._kind[position]].append(position)
        self._waits = [False] * len(self._nodes)
        self._turn = [(nodes[0], kind) for kind, nodes in enumerate(self._nodes) if nodes]
        heapify(self._turn)

    def run(self, limit: int) -> int:
        """Place up to so many pods; returns how many."""
        for placed in range(limit):
            position = self._next()
            if position is None:
                return placed
            self._place(position)
        return limit

    def _next(self) -> int | None:
        while self._turn:
            position, kind = heappop(self._turn)
            nodes = self._nodes[kind]
            if self._waits[kind] or not nodes or nodes[0] != position:
                continue  # said before something changed
            if self._kind_is_closed(kind, position):
                continue
            if self._room[position] > 0 and not self._node_waits(position):
                return position
            heappop(nodes)
            self._offer(kind)
        return None

    def _kind_is_closed(self, kind: int, position: int) -> bool:
        if any(used[codes[position]] for used, codes in self._apart):
            self._waits[kind] = True  # for good
            return True
        for level in self._coarse:
            code = level.codes[position]
            if level.closed(code):
                level.wait(code, kind)
                self._waits[kind] = True
                return True
        return False

    def _node_waits(self, position: int) -> bool:
        for level in self._fine:
            code = level.codes[position]
            if level.closed(code):
                level.wait(code, position)
                return True
        return False

    def _offer(self, kind: int) -> None:
        if self._nodes[kind] and not self._waits[kind]:
            heappush(self._turn, (self._nodes[kind][0], kind))

    def _place(self, position: int) -> None:
        self._room[position] -= 1
        self.taken[position] += 1
        for used, codes in self._apart:
            used[codes[position]] = codes[position] != NOWHERE
        kind = self._kind[position]
        for level in self._coarse:
            for released in level.add(position):
                self._waits[released] = False
                self._offer(released)
        for level in self._fine:
            for released in level.add(position):
                heappush(self._nodes[self._kind[released]], released)
                self._offer(self._kind[released])
        self._offer(kind)


def _is_shared(codes: Int64s, room: Int64s) -> bool:
    """Whether two candidates with room are in one domain."""
    held = codes[(room > 0) & (codes != NOWHERE)]
    return len(np.unique(held)) < len(held)
