"""Places many equal pods on planned nodes at once, if only resources and labels decide.

The result is the same as placing them one by one. A node takes such pods until none of its remaining types
holds one more, and that number is a division. So nodes take turns by number alone, and each node is updated
once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

import numpy as np

from karpool.model.devices.node_devices import RESOURCES
from karpool.packing.new_nodes.launchable import LaunchablePool
from karpool.packing.new_nodes.narrowing import Narrowing
from karpool.packing.new_nodes.node_rows import PlannedRows
from karpool.packing.new_nodes.offerings import MOST
from karpool.packing.new_nodes.pod_ask import PodAsk
from karpool.packing.tables.columns import Bools, Int64s


@dataclass(slots=True, eq=False)
class _NodeShare:
    """The pods that one node takes. `counts` is the number of pods by type."""

    state: int
    counts: Int64s
    most: int
    taken: int = 0


def kind_of(asks: Sequence[PodAsk]) -> object | None:
    """Return an equal key for pods that go to the same nodes; None if not only room and labels decide."""
    ask = asks[-1]
    facet = ask.rules.facet
    is_counted = ask.rules.own or ask.rules.repels or facet.counted_by or facet.kept_away_by
    has_choice = len(asks) > 1 or len(ask.choices) != 1 or len(ask.choices[0]) != 1
    takes_devices = ask.demands or any(name in RESOURCES for name, _ in ask.shape.requests)
    if is_counted or has_choice or ask.ports or takes_devices:
        return None
    return ask.amounts, ask.choices, ask.tolerated.tobytes()


class EqualPods:
    """Places equal pods on the rows of one packing."""

    def __init__(self, rows: PlannedRows, narrowing: Narrowing, launch: Sequence[LaunchablePool]) -> None:
        self._rows, self._narrowing, self._launch = rows, narrowing, launch

    def place(
        self, ask: PodAsk, pods: Sequence[int], open_to: Bools, open_node: Callable[[int], bool]
    ) -> int:
        """Place the pods; return how many were placed.

        `open_to` are the planned nodes to use; `open_node` opens a new node for a pod.
        """
        rows = self._rows
        waiting = rows.turns(open_to)
        heapify(waiting)
        shares: dict[int, _NodeShare] = {}
        placed = 0
        while placed < len(pods):
            if not waiting:
                if not open_node(pods[placed]):
                    break
                placed += 1
                waiting = rows.turns(_only(rows.n, rows.n - 1))
                continue
            turn, row = waiting[0]
            share = shares.get(row)
            if share is None:
                share = shares[row] = self._share(row, ask)
            left = share.most - share.taken
            if left <= 0:
                heappop(waiting)
                continue
            # The tightest node stays the tightest; the nodes with the fewest pods take one pod each in turn.
            more = min(left, len(pods) - placed) if rows.tightest or len(waiting) == 1 else 1
            share.taken += more
            rows.pods[row] += pods[placed : placed + more]
            placed += more
            heapreplace(waiting, (turn + more * rows.TURN, row))
        for row, share in shares.items():
            if share.taken:
                types, room = share.counts >= share.taken, self._launch[int(rows.pools[row])].room
                rows.put(row, ask, share.state, types, room, pods=share.taken)
        return placed

    def _share(self, row: int, ask: PodAsk) -> _NodeShare:
        rows, narrowing = self._rows, self._narrowing
        state = narrowing.states[narrowing.step(int(rows.states[row]), ask.choices[0][0])]
        room = self._launch[state.pool].room
        counts: Int64s = np.where(rows.types[row] & state.types, MOST, 0)
        for index, units in ask.amounts:
            np.minimum(counts, (room[index] - rows.used[index, row]) // units, out=counts)
        return _NodeShare(state.number, counts, int(counts.max(initial=0)))


def _only(rows: int, row: int) -> Bools:
    mask: Bools = np.zeros(rows, dtype=np.bool_)
    mask[row] = True
    return mask
