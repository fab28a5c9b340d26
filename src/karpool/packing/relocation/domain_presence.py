"""Which domains a spread constraint still sees while nodes are taken away, and put back."""

from dataclasses import dataclass

import numpy as np

from karpool.packing.tables.columns import Int64s
from karpool.packing.topology.constraints import TopologyGroup
from karpool.packing.topology.domains import NOWHERE


@dataclass(frozen=True, slots=True)
class RowRemoval:
    """`number` tells removals of one row apart. `stays_for`: groups that see a domain there all the same."""

    number: int
    row: int
    stays_for: frozenset[int] = frozenset()


class DomainPresence:
    """How many nodes of each domain a spread constraint still sees."""

    __slots__ = ("applied", "group", "members")

    def __init__(self, group: TopologyGroup) -> None:
        self.group = group
        codes = group.tally.axis.codes
        if group.nodes is not None:
            codes = codes[group.nodes]
        self.members: Int64s = np.bincount(codes, minlength=group.tally.axis.size)
        self.applied: list[RowRemoval] = []

    def follow(self, removed: list[RowRemoval]) -> None:
        """Bring the domains up to date. Removals are a stack: equal ends mean equal stacks."""
        changed = False
        while self.applied and (
            len(self.applied) > len(removed) or self.applied[-1] != removed[len(self.applied) - 1]
        ):
            changed |= self._shift(self.applied.pop(), 1)
        for removal in removed[len(self.applied) :]:
            changed |= self._shift(removal, -1)
            self.applied.append(removal)
        if changed:
            present = np.flatnonzero(self.members > 0)
            self.group.present = present[present != NOWHERE]

    def _shift(self, removal: RowRemoval, nodes: int) -> bool:
        row = removal.row
        if self.group.nodes is not None and not self.group.nodes[row]:
            return False
        if id(self.group) in removal.stays_for:
            return False
        code = int(self.group.tally.axis.codes[row])
        self.members[code] += nodes
        return True
