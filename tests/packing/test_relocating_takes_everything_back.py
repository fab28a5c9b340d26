"""Pods moved from node to node on columns: as plain loops would move them, and all of it taken back."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.model.taints import Taint, Toleration
from karpool.packing.relocation.relocation import Relocation
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.topology.topology import Topology
from tests.packing.naive import admits, has_room, naive_nodes, put
from tests.packing.naive_topology import NaiveCluster

TAINT = Taint(key="own", effect="NoSchedule")
APPS = ("a", "b")


def selector(app: str) -> LabelMatcher:
    return LabelMatcher((LabelRequirement("app", "In", frozenset((app,))),))


def term(app: str, key: str) -> AffinityTerm:
    return AffinityTerm(selector(app), key, frozenset(("n",)))


@st.composite
def shapes(draw) -> PodShape:
    app = draw(st.sampled_from(APPS))
    other = draw(st.sampled_from(APPS))
    key = draw(st.sampled_from((HOSTNAME, ZONE)))
    constraint = draw(st.sampled_from(("", "", "", "spread", "apart", "together", "port", "zone")))
    return PodShape(
        requests=(("cpu", draw(st.integers(1, 4))),),
        namespace="n",
        labels=(("app", app),),
        tolerations=draw(st.sampled_from(((), (Toleration(key="own", operator="Exists"),)))),
        spreads=(TopologySpread(draw(st.integers(1, 2)), key, True, selector(app)),)
        if constraint == "spread"
        else (),
        anti_affinity=(term(other, key),) if constraint == "apart" else (),
        affinity=(term(other, key),) if constraint == "together" else (),
        host_ports=frozenset((("0.0.0.0", "TCP", 80),)) if constraint == "port" else frozenset(),
        node_selector=((ZONE, "z1"),) if constraint == "zone" else (),
    )


@st.composite
def clusters(draw):
    rows = [
        NodeRow(
            f"n{number}",
            {HOSTNAME: f"n{number}", ZONE: draw(st.sampled_from(("z1", "z2")))},
            draw(st.sampled_from(((), (), (TAINT,)))),
            {"cpu": draw(st.integers(2, 12)), "pods": draw(st.integers(1, 8))},
        )
        for number in range(draw(st.integers(2, 6)))
    ]
    kinds = draw(st.lists(shapes(), min_size=1, max_size=4))
    pods = draw(
        st.lists(st.tuples(st.integers(0, len(rows) - 1), st.integers(0, len(kinds) - 1)), max_size=14)
    )
    state = ClusterRoom()
    for row in rows:
        state.put_node(row)
    placed, room = [], [dict(row.allocatable) for row in rows]
    for number, (row, kind) in enumerate(pods):
        asked = {"cpu": kinds[kind].requests[0][1], "pods": 1}
        if all(room[row][name] >= units for name, units in asked.items()):
            for name, units in asked.items():
                room[row][name] -= units
            state.put_pod(f"n/p{number}", kinds[kind], rows[row].name)
            placed.append((row, kinds[kind]))
    order = draw(st.permutations(range(len(rows))))
    targets = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return state, rows, placed, order, targets


def relocation_of(state: ClusterRoom, order, targets) -> Relocation:
    snapshot = state.snapshot()
    return Relocation(
        snapshot,
        np.array(order, dtype=np.int64),
        np.array(targets, dtype=np.bool_),
        range(len(snapshot.shapes)),
    )


def picture(relocation: Relocation) -> list[list[int]]:
    """Everything that placing depends on."""
    found = [relocation.free(name).tolist() for name in relocation.resources]
    topology = relocation._topology
    if isinstance(topology, Topology):
        groups = [*topology._groups.values(), *topology._repelling.values()]
        found += [tally.counts.tolist() for group in groups for tally in group.tallies]
    return found


def naive_places(rows, placed, order, targets, gone: int, stays: bool) -> list[tuple[int, int] | None]:
    """One pod after another of a node that goes, each to the first node in order that takes it.
    `stays`: the node is still there while they look for a place."""
    snapshot_of = [(rows[row].name, shape) for row, shape in placed if row != gone]
    kept = [row for row in range(len(rows)) if stays or row != gone]
    nodes = dict(zip(kept, naive_nodes([rows[row] for row in kept], snapshot_of), strict=True))
    world = NaiveCluster(
        [rows[row] for row in kept], {}, [(s, kept.index(r)) for r, s in placed if r != gone]
    )
    found: list[tuple[int, int] | None] = []
    for shape in (shape for row, shape in placed if row == gone):
        for row in order:
            if row == gone or not targets[row]:
                continue
            node = nodes[row]
            if admits(node, shape) and has_room(node, shape) and world.allows(shape, kept.index(row)):
                put(node, shape)
                world.pods.append((shape, kept.index(row)))
                found.append((row, 1))
                break
        else:
            found.append(None)
    return found


@given(clusters(), st.data(), st.booleans())
@settings(max_examples=150)
def test_pods_go_where_one_after_the_other_would(cluster, data, stays):
    state, rows, placed, order, targets = cluster
    gone = data.draw(st.integers(0, len(rows) - 1))
    relocation = relocation_of(state, order, targets)
    table = state.snapshot().shapes
    relocation.remove(gone, [table.intern(shape) for row, shape in placed if row == gone and stays])
    expected = naive_places(rows, placed, order, targets, gone, stays)
    for (_, shape), wanted in zip([each for each in placed if each[0] == gone], expected, strict=True):
        found = relocation.place(table.intern(shape), 1)
        assert found == ([] if wanted is None else [wanted])


@given(clusters(), st.data())
@settings(max_examples=80)
def test_what_was_tried_leaves_no_trace(cluster, data):
    state, rows, placed, order, targets = cluster
    relocation = relocation_of(state, order, targets)
    before = picture(relocation)
    saved = relocation.save()
    table = state.snapshot().shapes
    for row in data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True, max_size=3)):
        mark = relocation.mark()
        here = picture(relocation)
        relocation.remove(row)
        for _, shape in (each for each in placed if each[0] == row):
            relocation.place(table.intern(shape), data.draw(st.integers(1, 3)))
        if data.draw(st.booleans()):
            relocation.commit()
        else:
            relocation.undo(mark)
            assert picture(relocation) == here
    relocation.rewind(saved)
    assert picture(relocation) == before


@given(clusters(), st.data())
@settings(max_examples=60)
def test_failed_trials_do_not_change_what_is_found_later(cluster, data):
    """The memory of full nodes is only a memory: with and without it pods go to the same nodes."""
    state, rows, placed, order, targets = cluster
    tried, fresh = (relocation_of(state, order, targets) for _ in range(2))
    table = state.snapshot().shapes
    for row in data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=4)):
        mark = tried.mark()
        tried.remove(row)
        for _, shape in placed:
            tried.place(table.intern(shape), 4)
        tried.undo(mark)
    gone = data.draw(st.integers(0, len(rows) - 1))
    for each in (tried, fresh):
        each.remove(gone)
    for _, shape in (each for each in placed if each[0] == gone):
        number = table.intern(shape)
        assert tried.place(number, 3) == fresh.place(number, 3)


def test_a_host_that_is_gone_is_no_longer_a_domain_to_keep_level_with():
    state = ClusterRoom()
    for name in ("a", "b", "c"):
        state.put_node(NodeRow(name, {HOSTNAME: name}, (), {"cpu": 9, "pods": 9}))
    shape = PodShape(
        requests=(("cpu", 1),),
        namespace="n",
        labels=(("app", "a"),),
        spreads=(TopologySpread(1, HOSTNAME, True, selector("a")),),
    )
    for name in ("a", "b", "c"):
        state.put_pod(f"n/{name}", shape, name)
    relocation = relocation_of(state, (0, 1, 2), (True, True, True))
    mark = relocation.mark()
    relocation.remove(2)
    assert relocation.place(0, 1) == [(0, 1)]
    relocation.undo(mark)
    assert relocation.place(0, 3) == [(0, 1), (1, 1), (2, 1)]
