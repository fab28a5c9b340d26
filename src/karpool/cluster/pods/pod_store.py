"""The nodes of pods, by shape: 8 bytes of columns per pod, and its key.

A pod is bound to a row, bound to an unknown node, or pending. Per-row maps are copied on the first write
after a snapshot took them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.tables.columns import Column, Int32s
from karpool.packing.tables.shape_table import ShapeTable

_NOWHERE = -1
# Shapes without pods are dropped when they outnumber the others by this much, and by a part
# of the pods: this visits all pods, so it must be rare where they are many.
_SLACK = 128
_SLACK_PODS = 32

Charge = Callable[[int, tuple[tuple[str, int], ...], int], None]  # row, requests, +1 or -1 pods


class PodStore:
    def __init__(self, charge: Charge) -> None:
        self.shapes = ShapeTable()
        self._charge = charge
        self._slot_of: dict[str, int] = {}
        self._spare: list[int] = []
        self._rows = Column(np.int32, _NOWHERE)
        self._shape_ids = Column(np.int32)
        self._uses: Counter[int] = Counter()
        self._by_row: list[dict[str, int]] = []
        self._owned: list[int] = []  # the epoch in which a row's map was last copied
        self._epoch = 0
        self._pending: dict[str, int] = {}
        self._pending_shared = False
        self._homeless: dict[str, dict[str, int]] = {}  # by the name of an unknown node
        self._home_of: dict[str, str] = {}  # pods on unknown nodes

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, key: str) -> bool:
        return key in self._slot_of

    def shape_of(self, key: str) -> PodShape:
        return self.shapes[self._shape_ids[self._slot_of[key]]]

    def place_of(self, key: str) -> tuple[int, str]:
        """Return the row of a pod, or -1 and the name of an unknown node; empty if it has none."""
        slot = self._slot_of.get(key)
        return (_NOWHERE, "") if slot is None else (self._rows[slot], self._home_of.get(key, ""))

    def put(self, key: str, shape_id: int, node: str, row: int | None) -> bool:
        """Set the place of a pod: a `row`, an unknown `node`, or none; return whether it changed."""
        slot = self._slot_of.get(key)
        if slot is not None:
            where = self._rows[slot]
            same_place = where == row if row is not None else where < 0 and self._home_of.get(key, "") == node
            if same_place and self._shape_ids[slot] == shape_id:
                return False
            self._detach(key, slot)
        else:
            slot = self._spare.pop() if self._spare else len(self._slot_of)
            self._slot_of[key] = slot
        self._attach(key, slot, shape_id, node, row)
        return True

    def reshape(self, key: str, shape: PodShape) -> bool:
        """Give the pod another shape in the same place; return whether it changed."""
        slot = self._slot_of[key]
        row = self._rows[slot]
        shape_id = self.shapes.intern(shape)
        return self.put(key, shape_id, self._home_of.get(key, ""), row if row >= 0 else None)

    def remove(self, key: str) -> bool:
        slot = self._slot_of.get(key)
        if slot is None:
            return False
        self._detach(key, slot)
        del self._slot_of[key]
        self._spare.append(slot)
        return True

    def add_row(self, name: str) -> None:
        """Add a node; pods that arrived before it move to the new last row."""
        row = len(self._by_row)
        self._by_row.append({})
        self._owned.append(self._epoch)
        for key, shape_id in list(self._homeless.get(name, {}).items()):
            slot = self._slot_of[key]
            self._detach(key, slot)
            self._attach(key, slot, shape_id, name, row)

    def remove_row(self, name: str, row: int, last: int) -> None:
        """Remove a node; its pods stay under its name, and the last row takes its place."""
        for key, shape_id in list(self._by_row[row].items()):
            slot = self._slot_of[key]
            self._detach(key, slot)
            self._attach(key, slot, shape_id, name, None)
        self._by_row[row], self._owned[row] = self._by_row[last], self._owned[last]
        self._by_row.pop()
        self._owned.pop()
        if row != last:
            rows = self._rows.writable()
            rows[rows == last] = row

    def views(self) -> tuple[Int32s, Int32s, Sequence[Mapping[str, int]], Mapping[str, int]]:
        """Return row and shape of every pod (row -1: none), the pods of each row, and the pending pods."""
        self._drop_unused_shapes()
        self._epoch += 1
        self._pending_shared = True
        size = len(self._slot_of) + len(self._spare)
        return self._rows.view(size), self._shape_ids.view(size), tuple(self._by_row), self._pending

    def _attach(self, key: str, slot: int, shape_id: int, node: str, row: int | None) -> None:
        self._uses[shape_id] += 1
        self._shape_ids[slot] = shape_id
        if row is not None:
            self._rows[slot] = row
            self._own(row)[key] = shape_id
            self._charge(row, self.shapes[shape_id].requests, 1)
            return
        self._rows[slot] = _NOWHERE
        if node:
            self._homeless.setdefault(node, {})[key] = shape_id
            self._home_of[key] = node
        else:
            self._own_pending()[key] = shape_id

    def _detach(self, key: str, slot: int) -> None:
        shape_id = self._shape_ids[slot]
        self._uses[shape_id] -= 1
        if not self._uses[shape_id]:
            del self._uses[shape_id]
        row = self._rows[slot]
        if row >= 0:
            self._rows[slot] = _NOWHERE
            del self._own(row)[key]
            self._charge(row, self.shapes[shape_id].requests, -1)
        elif key in self._home_of:
            home = self._home_of.pop(key)
            del self._homeless[home][key]
            if not self._homeless[home]:
                del self._homeless[home]
        else:
            del self._own_pending()[key]

    def _own(self, row: int) -> dict[str, int]:
        if self._owned[row] != self._epoch:
            self._by_row[row] = dict(self._by_row[row])
            self._owned[row] = self._epoch
        return self._by_row[row]

    def _own_pending(self) -> dict[str, int]:
        if self._pending_shared:
            self._pending = dict(self._pending)
            self._pending_shared = False
        return self._pending

    def _drop_unused_shapes(self) -> None:
        """Start a new table when most of the old one is unused; older snapshots keep the old one."""
        if len(self.shapes) <= 2 * len(self._uses) + _SLACK + len(self._slot_of) // _SLACK_PODS:
            return
        old, self.shapes = self.shapes, ShapeTable()
        new_id = {shape_id: self.shapes.intern(old[shape_id]) for shape_id in sorted(self._uses)}
        self._uses = Counter({new_id[shape_id]: uses for shape_id, uses in self._uses.items()})
        ids = self._shape_ids.writable()
        for slot in self._slot_of.values():
            ids[slot] = new_id[int(ids[slot])]

        def translated(pods: Mapping[str, int]) -> dict[str, int]:
            return {key: new_id[shape_id] for key, shape_id in pods.items()}

        self._by_row = [translated(pods) for pods in self._by_row]
        self._owned = [self._epoch] * len(self._by_row)
        self._homeless = {node: translated(pods) for node, pods in self._homeless.items()}
        self._pending, self._pending_shared = translated(self._pending), False
