"""Whether some pods fit into some nodes, by exact search with a bounded number of steps.

Most infeasible cases are found without search: more pods of a size than the nodes have room for, or remaining
room in pieces too small for any pod that is left. Failed states are not tried again; states that differ only
in equal pods or nodes count as the same.
"""

from collections.abc import Sequence
from itertools import pairwise

STEPS_MAX = 400  # dead ends before the search gives up

Room = list[int]
Amounts = Sequence[tuple[int, int]]  # resource and units


def exact_fit(
    items: Sequence[int],
    amounts: Sequence[Amounts],
    rooms: Sequence[Room],
    admits: Sequence[Sequence[bool]],
) -> list[int] | None:
    """Return a node for every item, the first solution in order; None: no solution exists or none was found.

    `items` are indexes into `amounts` and into each of `admits`, sorted so that equal items are adjacent.
    """
    if not items or not rooms:
        return None if items else []
    return _Search(items, amounts, rooms, admits).found()


class _Search:
    def __init__(
        self,
        items: Sequence[int],
        amounts: Sequence[Amounts],
        rooms: Sequence[Room],
        admits: Sequence[Sequence[bool]],
    ) -> None:
        self._items = items
        self._amounts = amounts
        self._left = [list(room) for room in rooms]
        self._open_to = {
            item: [place for place, mask in enumerate(admits) if mask[item]] for item in dict.fromkeys(items)
        }
        self._runs = self._runs_of_equals()
        kinds: dict[tuple[bool, ...], int] = {}
        self._kind = [
            kinds.setdefault(tuple(mask[item] for item in self._open_to), len(kinds)) for mask in admits
        ]
        self._numbers: dict[tuple[int, ...], int] = {}  # by node kind and what is left of each resource
        self._now = [self._number(place) for place in range(len(rooms))]
        self._failed: set[tuple[int, ...]] = set()

    def _runs_of_equals(self) -> dict[int, list[tuple[int, int]]]:
        """Return by the start of each run of equal items the demands of that run and the later ones.

        A demand is an item of the run and the number of remaining items that ask for at least as much.
        """
        starts: list[int] = []
        for number, item in enumerate(self._items):
            if not number or not self._are_equal(item, self._items[number - 1]):
                starts.append(number)
        lengths = [end - start for start, end in pairwise([*starts, len(self._items)])]
        kinds = [self._items[start] for start in starts]
        demands: dict[int, list[tuple[int, int]]] = {start: [] for start in starts}
        for turn, kind in enumerate(kinds):
            asking = 0
            for before in range(len(starts) - 1, -1, -1):
                if self._asks_as_much(kinds[before], kind):
                    asking += lengths[before]
                if before <= turn:
                    demands[starts[before]].append((kind, asking))
        return demands

    def _are_equal(self, item: int, other: int) -> bool:
        return item == other or (
            self._amounts[item] == self._amounts[other] and self._open_to[item] == self._open_to[other]
        )

    def _asks_as_much(self, item: int, least: int) -> bool:
        if self._amounts[item] == self._amounts[least]:
            return True
        asked = dict(self._amounts[item])
        return all(asked.get(index, 0) >= units for index, units in self._amounts[least])

    def found(self) -> list[int] | None:
        items, steps = self._items, 0
        chosen: list[int] = []
        tried: list[set[int]] = [set()]  # by item, the numbers of the node states that were tried
        while len(chosen) < len(items):
            placed = len(chosen)
            item = items[placed]
            place = self._next_place(item, tried[-1]) if tried[-1] or self._may_fit(placed) else None
            if place is not None:
                tried[-1].add(self._now[place])
                self._put(item, place, 1)
                chosen.append(place)
                tried.append(set())
                if self._state(placed + 1) not in self._failed:
                    continue
            else:
                self._failed.add(self._state(placed))
                steps += 1
                if not chosen or steps > STEPS_MAX:
                    return None
            tried.pop()
            place = chosen.pop()
            self._put(items[len(chosen)], place, -1)
        return chosen

    def _may_fit(self, placed: int) -> bool:
        """Whether the nodes have room for all remaining items of each size, other sizes aside."""
        return all(self._holds(item, count) for item, count in self._runs.get(placed, ()))

    def _holds(self, item: int, count: int) -> bool:
        asked = [(index, units) for index, units in self._amounts[item] if units]
        if not asked:
            return True
        for room in self._left:
            fit = min(room[index] // units for index, units in asked)
            if fit > 0:
                count -= fit
                if count <= 0:
                    return True
        return False

    def _next_place(self, item: int, tried: set[int]) -> int | None:
        """Return the first node that holds the item and is not in the same state as a tried one."""
        asked = self._amounts[item]
        for place in self._open_to[item]:
            if self._now[place] in tried:
                continue
            room = self._left[place]
            for index, units in asked:
                if room[index] < units:
                    break
            else:
                return place
        return None

    def _put(self, item: int, place: int, sign: int) -> None:
        room = self._left[place]
        for index, units in self._amounts[item]:
            room[index] -= sign * units
        self._now[place] = self._number(place)

    def _number(self, place: int) -> int:
        return self._numbers.setdefault((self._kind[place], *self._left[place]), len(self._numbers))

    def _state(self, placed: int) -> tuple[int, ...]:
        """Return a key that is equal for equal remaining resources in nodes of equal kinds, in any order."""
        return placed, *sorted(self._now)
