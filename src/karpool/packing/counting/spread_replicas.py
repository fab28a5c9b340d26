"""Many pods of one shape under topology constraints, in one go.

`spread_replicas` gives exactly what placing one pod after another gives, each on
the first node in order that is allowed and has room. The usual constraints have a
closed form (one per host, evenly over zones); the rest is walked pod by pod.
"""

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.walking import STEPS_MAX, SelfAntiAffinity, SpreadState, SpreadWalk
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.topology.constraints import AffinityRule, AntiAffinityRule, SpreadRule
from karpool.packing.topology.domains import NOWHERE, TopologyAxis
from karpool.packing.topology.topology import Topology


def spread_replicas(
    topology: Topology,
    shape: PodShape,
    room: Int64s,
    order: Int64s | None = None,
    limit: int | None = None,
) -> Int64s:
    """How many pods each node takes, of at most `limit`; nothing is placed.

    `room` is how many each node could take if topology did not matter. Nodes are
    walked in `order` (row numbers; by default as they come).
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
    """Candidate nodes in order, with the counts that placing changes apart from those of the topology."""

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
                # Nothing that is placed here changes what this rule leaves open, except that
                # an anti-affinity towards one's own kind closes each domain that is used.
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
        """The first pod of a kind that must stay together; the others follow into its domains."""
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
        """Place pods until `limit` are placed in all; returns how many that added."""
        walk = SpreadWalk(np.where(self._open, self._room, 0), self._spreads, self._apart)
        more = walk.run(STEPS_MAX if limit is None else min(limit - self.placed, STEPS_MAX))
        self.take(np.array(walk.taken, dtype=np.int64))
        return more

    def at_once(self) -> Int64s | None:
        """What one by one would still place on each candidate; None when there is no closed form."""
        room = np.where(self._open, self._room, 0)
        for affinity in self._apart:
            used, codes = affinity.used, affinity.codes
            held = (codes != NOWHERE) & (room > 0)
            room[held & used[codes]] = 0
            held &= room > 0
            _, first = np.unique(codes[held], return_index=True)
            if len(first) < int(held.sum()) and (self._spreads or len(self._apart) > 1):
                return None  # which node of a domain comes first may depend on the other constraints
            ones = np.zeros_like(room)
            ones[np.flatnonzero(held)[first]] = 1
            room = np.where(held, ones, room)
        if not self._spreads:
            return room
        return self._evenly(self._spreads[0], room) if len(self._spreads) == 1 else None

    @staticmethod
    def _evenly(spread: SpreadState, room: Int64s) -> Int64s | None:
        """Walking ends when every domain with room left is `max_skew` above the least.

        A domain at the least always takes one more, so the least rises until the first
        domain at it is full; that decides how far all the others go.
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
