"""Pod shapes by number.

Thousands of pods share a few shapes, so pods are stored and counted by shape
number. A table only grows: a number keeps its meaning for as long as anyone
holds the table. `ClusterState` starts a new table when most of one is unused.
"""

from collections.abc import Callable, Hashable

import numpy as np

from karpool.model.shape import PodShape
from karpool.state.columns import Bools, read_only

_MEMO_LIMIT = 512


class ShapeTable:
    def __init__(self) -> None:
        self._shapes: list[PodShape] = []
        self._ids: dict[PodShape, int] = {}
        self._memo: dict[Hashable, Bools] = {}

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, shape_id: int) -> PodShape:
        return self._shapes[shape_id]

    def intern(self, shape: PodShape) -> int:
        shape_id = self._ids.get(shape)
        if shape_id is None:
            shape_id = self._ids[shape] = len(self._shapes)
            self._shapes.append(shape)
        return shape_id

    def find(self, shape: PodShape) -> int | None:
        return self._ids.get(shape)

    def where(self, key: Hashable, test: Callable[[PodShape], bool]) -> Bools:
        """`test` of every shape, by number. `key` stands for the test: the answer is
        remembered under it, and only shapes that came later are tested again."""
        known = self._memo.get(key)
        size = len(self._shapes)
        if known is not None and len(known) == size:
            return known
        start = 0 if known is None else len(known)
        answer = np.empty(size, dtype=np.bool_)
        if known is not None:
            answer[:start] = known
        answer[start:] = [test(shape) for shape in self._shapes[start:]]
        if known is None and len(self._memo) >= _MEMO_LIMIT:
            del self._memo[next(iter(self._memo))]
        self._memo[key] = read_only(answer)
        return answer
