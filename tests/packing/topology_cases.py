"""Small clusters with every kind of topology constraint, for Hypothesis to choose from."""

from dataclasses import dataclass

from hypothesis import strategies as st

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import EVERYTHING, LabelMatcher, LabelRequirement
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.taints import NO_SCHEDULE, Taint, Toleration
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room
from tests.packing.naive_topology import NaiveCluster

RACK = "example.com/rack"
NAMESPACES = {"default": {"team": "a"}, "other": {"team": "b"}}
ROOM = 4

selectors = st.sampled_from(
    [
        EVERYTHING,
        LabelMatcher((LabelRequirement("app", "In", frozenset(("web",))),)),
        LabelMatcher((LabelRequirement("app", "In", frozenset(("db",))),)),
        LabelMatcher((LabelRequirement("app", "Exists"),)),
        LabelMatcher((LabelRequirement("app", "NotIn", frozenset(("web",))),)),
        LabelMatcher((LabelRequirement("", "In", frozenset()),)),
    ]
)
keys = st.sampled_from([HOSTNAME, ZONE, RACK])

affinity_terms = st.builds(
    AffinityTerm,
    selectors,
    keys,
    st.sampled_from([frozenset(), frozenset(("default",)), frozenset(("default", "other"))]),
    st.sampled_from(
        [None, None, EVERYTHING, LabelMatcher((LabelRequirement("team", "In", frozenset(("b",))),))]
    ),
)
spreads = st.builds(
    TopologySpread,
    st.integers(1, 2),
    keys,
    st.sampled_from([True, True, True, False]),
    selectors,
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
node_terms = st.sampled_from(
    [
        None,
        None,
        None,
        (NodeTerm(((ZONE, ValueSet(frozenset(("a", "b")))),)),),
        (NodeTerm(((RACK, ValueSet(complement=True)),)),),
    ]
)
labels = st.sampled_from([(), (("app", "web"),), (("app", "db"),)])


def up_to(size, elements):
    return st.lists(elements, max_size=size).map(tuple)


shapes = st.builds(
    PodShape,
    namespace=st.sampled_from(["default", "default", "other"]),
    labels=labels,
    spreads=up_to(2, spreads),
    affinity=up_to(2, affinity_terms),
    anti_affinity=up_to(2, affinity_terms),
    node_terms=node_terms,
    tolerations=st.sampled_from([(), (Toleration(key="gpu", operator="Exists"),)]),
)


@st.composite
def node_rows(draw):
    rows = []
    for number in range(draw(st.integers(1, 6))):
        found = {HOSTNAME: f"n{number}"} if draw(st.integers(0, 7)) else {}
        if zone := draw(st.sampled_from(["a", "b", "c", None])):
            found[ZONE] = zone
        if rack := draw(st.sampled_from(["r1", "r2", None])):
            found[RACK] = rack
        taints = (Taint(key="gpu", effect=NO_SCHEDULE),) if draw(st.integers(0, 4)) == 0 else ()
        rows.append(NodeRow(f"n{number}", found, taints, {"cpu": 4000, "memory": 4 << 30, "pods": 100}))
    return rows


@dataclass
class Case:
    naive: NaiveCluster
    snapshot: Room


@st.composite
def clusters(draw):
    nodes = draw(node_rows())
    pods = draw(st.lists(st.tuples(shapes, st.integers(0, len(nodes) - 1)), max_size=6))
    return Case(NaiveCluster(nodes, NAMESPACES, list(pods)), snapshot_of(nodes, pods))


def snapshot_of(nodes, pods=(), namespaces=NAMESPACES):
    state = ClusterRoom()
    for name, found in namespaces.items():
        state.upsert_namespace(name, found)
    for row in nodes:
        state.put_node(row)
    for number, (shape, row) in enumerate(pods):
        state.put_pod(f"{shape.namespace}/p{number}", shape, nodes[row].name)
    return state.snapshot()
