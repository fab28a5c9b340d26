"""Places many pods of one shape under topology constraints at once.

`spread_replicas` returns exactly what placing one pod after another returns, each on the first allowed node
in order that has room. The common constraints have a closed form (one per host, evenly over zones). The
others are walked pod by pod, in about logarithmic time per pod: counts only rise, and so does the minimum of
each spread constraint. A closed node therefore stays closed until the minimum reaches a known level, and is
not checked before.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.topology.constraints import AffinityRule, AntiAffinityRule, SpreadRule
from karpool.packing.topology.domains import NOWHERE, TopologyAxis
from karpool.packing.topology.topology import Topology

# Bounds a walk without a limit; far more pods than a cluster holds.
STEPS_MAX = 1_000_000


@dataclass(slots=True, eq=False)
class SpreadState:
    """A spread constraint that placed pods change. Arrays are per candidate node, in order."""

    counts: Int64s  # by domain
    codes: Int64s
    eligible: Bools | None  # candidates whose pods are counted; None: all
    domains: Int64s  # the domains that form the minimum
    max_skew: int
    enough_domains: bool


@dataclass(slots=True, eq=False)
class SelfAntiAffinity:
    """A required anti-affinity that selects its own pods: a domain takes one pod."""

    used: Bools  # by domain
    codes: Int64s


@dataclass(slots=True, eq=False)
class _Level:
    """A spread constraint with its minimum and the candidates that wait for the minimum to rise."""

    counts: list[int]
    eligible: list[bool] | None
    max_skew: int
    codes: list[int]
    least: int
    at: dict[int, int]  # number of domains by count; empty: the minimum stays 0
    in_least: frozenset[int]
    waiting: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def closed(self, code: int) -> bool:
        return code == NOWHERE or self.counts[code] >= self.max_skew + self.least

    def wait(self, code: int, who: int) -> None:
        if code != NOWHERE:
            self.waiting[self.counts[code] - self.max_skew + 1].append(who)

    def add(self, position: int) -> list[int]:
        """Count a pod on a candidate; return the candidates that no longer have to wait."""
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
    """Places pods one by one. Candidates are grouped by domains; each group offers its first open node."""

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
        """Place up to this many pods; return how many were placed."""
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
                continue  # outdated entry
            if self._kind_is_closed(kind, position):
                continue
            if self._room[position] > 0 and not self._node_waits(position):
                return position
            heappop(nodes)
            self._offer(kind)
        return None

    def _kind_is_closed(self, kind: int, position: int) -> bool:
        if any(used[codes[position]] for used, codes in self._apart):
            self._waits[kind] = True  # closed for good
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
    """Whether two candidates with room are in the same domain."""
    held = codes[(room > 0) & (codes != NOWHERE)]
    return len(np.unique(held)) < len(held)


def spread_replicas(
    topology: Topology,
    shape: PodShape,
    room: Int64s,
    order: Int64s | None = None,
    limit: int | None = None,
) -> Int64s:
    """Return how many pods each node takes, at most `limit` in all; nothing is placed.

    `room` is how many pods each node could take without topology. Nodes are walked in `order` (row numbers;
    by default all rows in order).
    """
    order = np.arange(len(room), dtype=np.int64) if order is None else order
    replicas = _Replicas(topology, shape, room, order)
    if limit is not None and limit <= 0:
        return replicas.taken()
    if replicas.must_start and not replicas.start():
        return replicas.taken()
    counts = replicas.at_once()
    if counts is None or (limit is not None and replicas.placed + int(counts.sum()) > limit):
        replicas.one_by_one(limit)
    else:
        replicas.take(counts)
    return replicas.taken()


class _Replicas:
    """Candidate nodes in order, with their own copy of the counts that placing changes."""

    def __init__(self, topology: Topology, shape: PodShape, room: Int64s, order: Int64s) -> None:
        spreads: list[SpreadRule] = []
        apart: dict[TopologyAxis, Bools] = {}
        self._start: AffinityRule | None = None
        ok = room > 0
        for rule in topology.rules(shape).all:
            if isinstance(rule, SpreadRule) and rule.counts_itself:
                spreads.append(rule)
            elif isinstance(rule, AffinityRule) and rule.may_start:
                self._start = rule
            else:
                # Placing does not change what this rule allows, except that an anti-affinity that selects
                # its own
                # pods closes each domain that is used.
                for axis, is_open in rule.open_to_nodes():
                    ok &= is_open[axis.codes]
                if isinstance(rule, AntiAffinityRule) and rule.counts_itself:
                    apart[rule.axis] = np.zeros(rule.axis.size, dtype=np.bool_)
        self._size = len(room)
        self._rows = order[ok[order]]
        self._room: Int64s = room[self._rows].astype(np.int64)
        self._taken: Int64s = np.zeros_like(self._room)
        self._open: Bools = np.ones(len(self._rows), dtype=np.bool_)
        self._spreads = [self._spreading(rule) for rule in spreads]
        self._apart = [SelfAntiAffinity(used, axis.codes[self._rows]) for axis, used in apart.items()]
        if self._start is not None:
            for tally in self._start.group.tallies:
                self._open &= tally.axis.codes[self._rows] != NOWHERE
        self.placed = 0

    def _spreading(self, rule: SpreadRule) -> SpreadState:
        group = rule.group
        domains = np.union1d(group.present, group.joined)
        return SpreadState(
            group.tally.counts.copy(),
            rule.axis.codes[self._rows],
            None if group.nodes is None else group.nodes[self._rows],
            domains,
            rule.max_skew,
            len(domains) >= rule.min_domains,
        )

    @property
    def must_start(self) -> bool:
        return self._start is not None

    def start(self) -> bool:
        """Place the first pod of a group with affinity to itself, and restrict the others to its domains."""
        assert self._start is not None
        if not self.one_by_one(1):
            return False
        first = int(self._taken.argmax())
        for affinity in self._apart:
            affinity.used[affinity.codes[first]] = affinity.codes[first] != NOWHERE
        for spread in self._spreads:
            if spread.eligible is None or spread.eligible[first]:
                spread.counts[spread.codes[first]] += 1
        for tally in self._start.group.tallies:
            codes = tally.axis.codes[self._rows]
            self._open &= codes == codes[first]
        return True

    def one_by_one(self, limit: int | None) -> int:
        """Place pods one by one until `limit` are placed in total; return how many were added."""
        walk = SpreadWalk(np.where(self._open, self._room, 0), self._spreads, self._apart)
        more = walk.run(STEPS_MAX if limit is None else min(limit - self.placed, STEPS_MAX))
        self.take(np.array(walk.taken, dtype=np.int64))
        return more

    def at_once(self) -> Int64s | None:
        """Return what one-by-one placing would add on each candidate; None without a closed form."""
        room = np.where(self._open, self._room, 0)
        for affinity in self._apart:
            used, codes = affinity.used, affinity.codes
            held = (codes != NOWHERE) & (room > 0)
            room[held & used[codes]] = 0
            held &= room > 0
            _, first = np.unique(codes[held], return_index=True)
            if len(first) < int(held.sum()) and (self._spreads or len(self._apart) > 1):
                return None  # the other constraints may decide which node of a domain comes first
            ones = np.zeros_like(room)
            ones[np.flatnonzero(held)[first]] = 1
            room = np.where(held, ones, room)
        if not self._spreads:
            return room
        return self._evenly(self._spreads[0], room) if len(self._spreads) == 1 else None

    @staticmethod
    def _evenly(spread: SpreadState, room: Int64s) -> Int64s | None:
        """Placing ends when every domain with room left is `max_skew` above the minimum.

        A domain at the minimum always takes one more pod, so the minimum rises until the first domain at it
        is full. That decides how many pods the other domains take.
        """
        if spread.eligible is not None and not spread.eligible[room > 0].all():
            return None
        room = np.where(spread.codes == NOWHERE, 0, room)
        counts = spread.counts
        capacity = np.bincount(spread.codes, weights=room, minlength=len(counts)).astype(np.int64)
        least = 0
        if spread.enough_domains and len(spread.domains):
            least = int((counts + capacity)[spread.domains].min())
        quota = np.clip(least + spread.max_skew - counts, 0, capacity)
        by_domain = np.argsort(spread.codes, kind="stable")
        codes, rooms = spread.codes[by_domain], room[by_domain]
        before = np.cumsum(rooms) - rooms
        starts = np.concatenate(([0], np.flatnonzero(np.diff(codes)) + 1)) if len(codes) else np.zeros(0, int)
        offset = np.repeat(before[starts], np.diff(np.append(starts, len(codes))))
        taken = np.empty_like(room)
        taken[by_domain] = np.clip(quota[codes] - (before - offset), 0, rooms)
        return taken

    def take(self, counts: Int64s) -> None:
        self._taken += counts
        self._room -= counts
        self.placed += int(counts.sum())

    def taken(self) -> Int64s:
        result: Int64s = np.zeros(self._size, dtype=np.int64)
        result[self._rows] = self._taken
        return result
