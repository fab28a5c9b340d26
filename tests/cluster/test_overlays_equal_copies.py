"""A what-if snapshot reads like the cluster in which it has happened."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.feasibility import feasible
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement, snapshot_of
from tests.cluster.views import described, ordered
from tests.packing.cases import (
    allocatables,
    built,
    label_keys,
    label_values,
    names,
    node_lists,
    shapes,
    taints,
)

new_names = st.sampled_from([*names, "x0", "x1", "x2"])
new_rows = st.builds(
    NodeRow,
    new_names,
    st.dictionaries(label_keys, label_values, max_size=2),
    st.lists(taints, max_size=1).map(tuple),
    allocatables(),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("minus"), st.integers(0, 9), shapes, st.integers(0, 3)),
        st.tuples(st.just("plus"), st.lists(new_rows, max_size=2, unique_by=lambda row: row.name)),
        st.tuples(st.just("without"), st.sets(new_names, max_size=2)),
    ),
    max_size=5,
)


class Both:
    """Each step is taken twice: on the overlay, and on a state of its own."""

    def __init__(self, rows, pods):
        self.state = ClusterRoom()
        for row in rows:
            self.state.put_node(row)
        for number, (node, shape) in enumerate(pods):
            if any(row.name == node for row in rows):
                self.state.put_pod(f"default/p{number}", shape, node)
        self.overlay = self.state.snapshot()
        self.promised = 0

    def minus(self, place, shape, count):
        if self.overlay.n:
            row = place % self.overlay.n
            name = self.overlay.names[row]
            self.overlay = self.overlay.minus([PodPlacement(row, shape, count)])
            for _ in range(count):
                self.state.put_pod(f"promised/{self.promised}", shape, name)
                self.promised += 1

    def plus(self, rows):
        rows = [row for row in rows if self.overlay.find(row.name) is None]
        self.overlay = self.overlay.plus(rows)
        for row in rows:
            self._forget_pods_of(row.name)
            self.state.put_node(row)

    def without(self, gone):
        self.overlay = self.overlay.without(gone)
        for name in gone:
            self.state.remove_node(name)

    def _forget_pods_of(self, name):
        """Pods of a removed node are gone for an overlay; a state would expect them back."""
        for key in list(self.state._pods._homeless.get(name, ())):
            self.state.remove_pod(*key.split("/"))


def without_pod_names(view):
    return {
        name: {key: value for key, value in facts.items() if key != "pods"} for name, facts in view.items()
    }


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(node_lists(), st.lists(st.tuples(st.sampled_from(names), shapes), max_size=4), steps, shapes)
def test_any_stack_of_overlays(rows, pods, steps, probe):
    both = Both(rows, pods)
    start, before = both.overlay, described(both.overlay)

    for step, *arguments in steps:
        getattr(both, step)(*arguments)

    copy = both.state.snapshot()
    assert without_pod_names(described(both.overlay)) == without_pod_names(described(copy))
    assert ordered(both.overlay) == ordered(copy)
    by_name = dict(zip(both.overlay.names, feasible(both.overlay, probe).tolist(), strict=True))
    assert by_name == dict(zip(copy.names, feasible(copy, probe).tolist(), strict=True))
    assert described(start) == before


def test_an_overlay_that_changes_nothing_is_the_snapshot_itself():
    snapshot = built([NodeRow("n0")]).snapshot

    assert snapshot.minus([]) is snapshot
    assert snapshot.plus([]) is snapshot
    assert snapshot.without(["unknown"]) is snapshot


def test_a_potential_node_needs_a_name_of_its_own():
    snapshot = built([NodeRow("n0")]).snapshot

    with pytest.raises(Invalid, match="n0"):
        snapshot.plus([NodeRow("n0")])
    with pytest.raises(Invalid, match="n1"):
        snapshot.plus([NodeRow("n1"), NodeRow("n1")])


def test_promises_beyond_the_room_leave_nothing_and_not_less():
    snapshot = snapshot_of([NodeRow("n0", allocatable={"cpu": 4, "pods": 2})])
    huge = PodShape((("cpu", 2**62),))

    after = snapshot.minus([PodPlacement(0, huge, 5)])

    assert after.free("cpu").tolist() == [0]
    assert after.slots.tolist() == [0]


def test_arrays_of_a_snapshot_cannot_be_written():
    snapshot = built([NodeRow("n0", {"disk": "a"}, (), {"cpu": 4, "pods": 2})], [("n0", PodShape())]).snapshot
    overlays = [snapshot, snapshot.minus([PodPlacement(0, PodShape())]), snapshot.plus([NodeRow("n1")])]

    for overlay in overlays:
        for array in (
            overlay.free("cpu"),
            overlay.allocatable("cpu"),
            overlay.slots,
            overlay.label("disk").codes,
            overlay.order,
        ):
            assert isinstance(array, np.ndarray)
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 9
