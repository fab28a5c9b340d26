"""Small clusters and pods, for Hypothesis to choose from."""

from dataclasses import dataclass

from hypothesis import strategies as st

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.kubernetes.node import REGION, ZONE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.taints import UNSCHEDULABLE, Taint, Toleration
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room

GPU = "nvidia.com/gpu"
ANYWHERE = "0.0.0.0"

label_values = st.sampled_from(["a", "b", "3", "12", ""])
label_keys = st.sampled_from([ZONE, REGION, "disk", "size"])
value_sets = st.one_of(
    st.builds(ValueSet, st.frozensets(label_values, min_size=1, max_size=2), st.booleans()),
    st.sampled_from([ValueSet(), ValueSet(complement=True)]),
    st.builds(lambda low: ValueSet(complement=True, at_least=low), st.integers(1, 13)),
    st.builds(lambda high: ValueSet(complement=True, at_most=high), st.integers(1, 13)),
)
names = [f"n{number}" for number in range(6)]
field_sets = st.tuples(
    st.sampled_from(["metadata.name", "metadata.name", "spec.other"]),
    st.builds(ValueSet, st.sampled_from([*names, ""]).map(lambda name: frozenset((name,))), st.booleans()),
)
terms = st.builds(
    NodeTerm,
    st.lists(st.tuples(label_keys, value_sets), max_size=2).map(tuple),
    st.lists(field_sets, max_size=1).map(tuple),
)
alternatives = st.lists(terms, max_size=2).map(tuple)
taints = st.sampled_from(
    [
        Taint(key="k", value="v", effect="NoSchedule"),
        Taint(key="k", value="", effect="NoExecute"),
        Taint(key="soft", value="v", effect="PreferNoSchedule"),
        UNSCHEDULABLE,
    ]
)
tolerations = st.builds(
    Toleration,
    key=st.sampled_from(["", "k", UNSCHEDULABLE.key]),
    operator=st.sampled_from(["", "Equal", "Exists", "Gt"]),
    value=st.sampled_from(["", "v"]),
    effect=st.sampled_from(["", "NoSchedule", "NoExecute"]),
)
host_ports = st.frozensets(
    st.tuples(st.sampled_from([ANYWHERE, "10.0.0.1"]), st.sampled_from(["TCP", "UDP"]), st.just(80)),
    max_size=1,
)


def requests(most: int = 4):
    return st.dictionaries(st.sampled_from(["cpu", "memory", GPU]), st.integers(1, most), max_size=3).map(
        lambda amounts: tuple(sorted(amounts.items()))
    )


def seldom(strategy, otherwise):
    """Too many constraints at once, and nothing ever fits."""
    return st.one_of(st.just(otherwise), st.just(otherwise), st.just(otherwise), strategy)


plain_shapes = st.builds(PodShape, requests=requests())
port_shapes = st.builds(PodShape, requests=requests(2), host_ports=host_ports)
constrained_shapes = st.builds(
    PodShape,
    requests=requests(),
    node_selector=seldom(st.tuples(st.tuples(label_keys, label_values)), ()),
    node_terms=seldom(alternatives, None),
    tolerations=st.lists(tolerations, max_size=2).map(tuple),
    volume_terms=seldom(st.tuples(alternatives), ()),
    host_ports=seldom(host_ports, frozenset()),
    labels=st.sampled_from([(), (("app", "web"),)]),
    namespace=st.just("default"),
)
shapes = st.one_of(constrained_shapes, constrained_shapes, plain_shapes, port_shapes)


def allocatables(most: int = 9):
    return st.fixed_dictionaries(
        {"cpu": st.integers(0, most), "pods": st.integers(0, most)},
        optional={"memory": st.integers(0, most), GPU: st.integers(0, 4)},
    )


@st.composite
def node_lists(draw, least: int = 0, most: int = 5):
    chosen = draw(st.permutations(names))[: draw(st.integers(least, most))]
    return [
        NodeRow(
            name,
            draw(st.dictionaries(label_keys, label_values, max_size=3)),
            tuple(draw(seldom(st.lists(taints, max_size=2, unique=True), []))),
            draw(allocatables()),
        )
        for name in chosen
    ]


@dataclass
class BuiltCluster:
    rows: list[NodeRow]
    pods: list[tuple[str, PodShape]]  # node, shape
    snapshot: Room

    def in_order(self) -> list[NodeRow]:
        by_name = {row.name: row for row in self.rows}
        return [by_name[self.snapshot.names[row]] for row in self.snapshot.order]


def built(rows: list[NodeRow], pods: list[tuple[str, PodShape]] = ()) -> BuiltCluster:
    state = ClusterRoom()
    for row in rows:
        state.put_node(row)
    for number, (node, shape) in enumerate(pods):
        state.put_pod(f"default/p{number}", shape, node)
    return BuiltCluster(rows, list(pods), state.snapshot())


@st.composite
def clusters(draw, least: int = 0, most: int = 5, pods: int = 4):
    rows = draw(node_lists(least, most))
    bound = draw(st.lists(st.tuples(st.sampled_from(names), shapes), max_size=pods)) if rows else []
    return built(rows, bound)
