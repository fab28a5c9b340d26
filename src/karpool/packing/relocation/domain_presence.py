"""Which domains a spread constraint still includes while nodes are removed and restored."""

from dataclasses import dataclass

import numpy as np

from karpool.packing.tables.columns import Int64s
from karpool.packing.topology.constraints import TopologyGroup
from karpool.packing.topology.domains import NOWHERE


@dataclass(frozen=True, slots=True)
class RowRemoval:
    """`number` identifies one removal of a row. `stays_for` are groups that still include the domain."""

    number: int
    row: int
    stays_for: frozenset[int] = frozenset()


class DomainPresence:
    """The number of nodes by domain that a spread constraint still includes."""

    __slots__ = ("applied", "group", "members")

    def __init__(self, group: TopologyGroup) -> None:
        self.group = group
        codes = group.tally.axis.codes
        if group.nodes is not None:
            codes = codes[group.nodes]
        self.members: Int64s = np.bincount(codes, minlength=group.tally.axis.size)
        self.applied: list[RowRemoval] = []

    def follow(self, removed: list[RowRemoval]) -> None:
        """Update the domains. Removals are a stack: if the last entries are equal, the stacks are equal."""
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
