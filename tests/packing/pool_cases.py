"""Small pools, catalogues and pending pods, for Hypothesis to choose from."""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT, CompiledPool
from karpool.model.kubernetes.node import ARCH, ZONE
from karpool.model.kubernetes.pod_shape import PodShape, WeightedNodeTerm, WeightedTerm
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.taints import NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint, Toleration
from karpool.packing.new_nodes.offerings import StockOut
from karpool.packing.new_nodes.pack import DEFAULTS, PackOptions, pack_new_nodes
from karpool.packing.new_nodes.pack_result import PackResult, PendingPod
from tests.packing.naive_new_nodes import NaivePacker
from tests.packing.naive_topology import NaiveCluster
from tests.packing.topology_cases import (
    NAMESPACES,
    RACK,
    affinity_terms,
    node_rows,
    shapes,
    snapshot_of,
    up_to,
)

ZONES = ("a", "b", "c")
TEAM = "example.com/team"


def one_of(*values):
    return ValueSet(frozenset(values))


def instance_type(
    name, cpu=4, gib=8, *, price=1.0, zones=ZONES, kinds=(ON_DEMAND,), pods=10, arch="amd64", **more
):
    """`price` is per offering, or None when unknown; reserved for daemons and system: nothing."""
    size = {"cpu": cpu * 1000, "memory": gib << 30, "pods": pods, **more}
    offerings = tuple(Offering(zone, kind, price) for zone in zones for kind in kinds)
    return InstanceType(name, {ARCH: one_of(arch)}, size, dict(size), offerings)


def catalogue(*types):
    return Catalogue("test", "test", types)


def pending(name, shape=None, *, cpu=1000, gib=1, **fields):
    requests = (("cpu", cpu), ("memory", gib << 30))
    shape = PodShape(requests=requests, namespace="default", **fields) if shape is None else shape
    return PendingPod(name, shape, uid=name)


offerings = st.builds(
    Offering,
    st.sampled_from(ZONES),
    st.sampled_from([ON_DEMAND, SPOT]),
    st.sampled_from([None, 0.5, 1.0, 1.0, 2.0, 3.0]),
    st.sampled_from([True, True, True, False]),
)


@st.composite
def instance_types(draw):
    found = []
    for number in range(draw(st.integers(1, 4))):
        size = {
            "cpu": draw(st.integers(1, 8)) * 1000,
            "memory": draw(st.integers(1, 8)) << 30,
            "pods": draw(st.integers(1, 8)),
        }
        if draw(st.integers(0, 3)) == 0:
            size["example.com/gpu"] = 1
        places = draw(
            st.lists(offerings, min_size=1, max_size=5, unique_by=lambda o: (o.zone, o.capacity_type))
        )
        labels = {}
        if draw(st.integers(0, 4)):
            labels[ARCH] = one_of(*draw(st.sampled_from([("amd64",), ("arm64",), ("amd64", "arm64")])))
        found.append(InstanceType(f"t{number}", labels, size, dict(size), tuple(places)))
    return found


pool_requirements = st.fixed_dictionaries(
    {},
    optional={
        ZONE: st.sampled_from([one_of("a", "b"), one_of("c"), ValueSet(frozenset(("a",)), True)]),
        CAPACITY_TYPE: st.sampled_from(
            [one_of(SPOT), one_of(ON_DEMAND), replace(one_of(SPOT, ON_DEMAND), min_values=2)]
        ),
        ARCH: st.sampled_from([one_of("amd64"), replace(one_of("amd64", "arm64"), min_values=2)]),
        RACK: st.sampled_from([one_of("r1"), one_of("r1", "r2", "r3")]),
        TEAM: st.just(one_of("red", "blue")),
    },
)
taints = st.sampled_from(
    [
        (),
        (),
        (),
        (),
        (),
        (Taint(key="gpu", effect=NO_SCHEDULE),),
        (Taint(key="soft", effect=PREFER_NO_SCHEDULE),),
    ]
)
limits = st.fixed_dictionaries(
    {}, optional={"cpu": st.integers(2, 20).map(lambda cpu: cpu * 1000), "nodes": st.integers(1, 5)}
)


@st.composite
def pools(draw):
    return [
        CompiledPool(
            f"pool-{number}",
            weight=draw(st.sampled_from([0, 0, 10])),
            requirements=draw(pool_requirements),
            taints=draw(taints),
            startup_taints=(Taint(key="starting", effect=NO_SCHEDULE),),
            limits=draw(limits),
            ready=draw(st.integers(0, 19)) != 13,
        )
        for number in range(draw(st.integers(1, 3)))
    ]


requests = st.builds(
    lambda cpu, gib, gpu: tuple(
        (name, units)
        for name, units in (("cpu", cpu), ("example.com/gpu", gpu), ("memory", gib << 30))
        if units
    ),
    st.sampled_from([0, 500, 1000, 2000]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0, 0, 0, 0, 0, 0, 1]),
)
label_terms = st.sampled_from(
    [
        NodeTerm(((ZONE, one_of("a", "b")),)),
        NodeTerm(((ZONE, one_of("c")),)),
        NodeTerm(((ARCH, one_of("arm64")),)),
        NodeTerm(((CAPACITY_TYPE, one_of(SPOT)),)),
        NodeTerm(((TEAM, one_of("red")),)),
        NodeTerm(((TEAM, ValueSet(frozenset(("red",)), True)),)),
    ]
)
selectors = st.sampled_from(
    [()] * 8 + [((ZONE, "a"),), ((ARCH, "amd64"),), ((TEAM, "blue"),), (("no.such/label", "x"),)]
)
ports = st.sampled_from(
    [frozenset()] * 4 + [frozenset({("0.0.0.0", "TCP", 80)}), frozenset({("10.0.0.1", "TCP", 80)})]
)


@st.composite
def pod_shapes(draw):
    base = draw(shapes)
    plain = draw(st.booleans())
    if plain:
        base = replace(base, spreads=(), affinity=(), anti_affinity=())
    return replace(
        base,
        requests=draw(requests),
        node_selector=draw(selectors),
        node_terms=draw(st.none() | st.none() | st.lists(label_terms, min_size=1, max_size=2).map(tuple)),
        host_ports=draw(ports),
        volume_terms=draw(
            st.sampled_from([(), (), ((NodeTerm(((ZONE, one_of("b")),)), NodeTerm(((ZONE, one_of("a")),))),)])
        ),
        preferred_affinity=draw(up_to(1, st.builds(WeightedTerm, st.integers(1, 3), affinity_terms))),
        preferred_anti_affinity=draw(up_to(1, st.builds(WeightedTerm, st.integers(1, 3), affinity_terms))),
        preferred_nodes=draw(up_to(2, st.builds(WeightedNodeTerm, st.integers(1, 3), label_terms))),
    )


daemon_shapes = st.builds(
    PodShape,
    requests=st.sampled_from([(("cpu", 200),), (("cpu", 1000), ("memory", 1 << 30))]),
    node_selector=st.sampled_from([(), ((ARCH, "arm64"),), ((ZONE, "a"),)]),
    tolerations=st.sampled_from([(), (Toleration(key="gpu", operator="Exists"),)]),
    host_ports=ports,
)
stock_outs = st.builds(
    StockOut,
    st.sampled_from(["t0", "t1", None]),
    st.sampled_from(["a", "b", None]),
    st.sampled_from([SPOT, ON_DEMAND]),
)
options = st.builds(
    PackOptions,
    existing=st.sampled_from([True, True, False]),
    preferences=st.sampled_from(["respect", "ignore"]),
    limits=st.sampled_from(["pessimistic", "exact"]),
    needs_price=st.sampled_from([False, False, True]),
)


@dataclass
class PackCase:
    nodes: list
    bound: list
    pods: list
    pools: list
    types: list
    daemons: tuple = ()
    usage: dict = field(default_factory=dict)
    unavailable: tuple = ()
    options: PackOptions = DEFAULTS

    def pack(self) -> PackResult:
        return pack_new_nodes(
            snapshot_of(self.nodes, self.bound),
            self.pods,
            self.pools,
            Catalogue("test", "test", self.types),
            daemons=self.daemons,
            usage=self.usage,
            unavailable=self.unavailable,
            options=self.options,
        )

    def naive(self):
        cluster = NaiveCluster(self.nodes, NAMESPACES, list(self.bound))
        room = {node.name: dict(node.allocatable) for node in self.nodes}
        ports = {}
        for shape, row in self.bound:
            left = room[self.nodes[row].name]
            for name, units in (*shape.requests, ("pods", 1)):
                left[name] = left.get(name, 0) - units
            ports[row] = {*ports.get(row, ()), *shape.host_ports}
        packer = NaivePacker(
            cluster,
            self.pods,
            self.pools,
            self.types,
            daemons=self.daemons,
            usage=self.usage,
            unavailable=self.unavailable,
            options=self.options,
            room=room,
        )
        packer.ports = ports
        return packer


plain_types = [
    InstanceType(
        f"t{number}",
        {ARCH: one_of("amd64")},
        {"cpu": cpu * 1000, "memory": 2 * cpu << 30, "pods": 4 * cpu},
        {"cpu": cpu * 1000 - 100, "memory": 2 * cpu << 30, "pods": 4 * cpu},
        tuple(Offering(zone, ON_DEMAND, cpu * (1.0 + 0.1 * (zone != "b"))) for zone in ZONES),
    )
    for number, cpu in enumerate((1, 2, 4))
]


@st.composite
def roomy_cases(draw):
    """Pools that launch nearly anything, so that only topology and size matter."""
    nodes = draw(st.just([]) | node_rows())
    bound = draw(st.lists(st.tuples(shapes, st.integers(0, len(nodes) - 1)), max_size=3)) if nodes else []
    racks = draw(st.sampled_from([{}, {RACK: one_of("r1", "r2", "r3")}]))
    chosen = [
        replace(
            each,
            requests=draw(requests_in_reach),
            node_terms=None,
            preferred_anti_affinity=draw(
                up_to(1, st.builds(WeightedTerm, st.integers(1, 3), affinity_terms))
            ),
        )
        for each in draw(st.lists(shapes, min_size=2, max_size=4))
    ]
    copies = draw(st.lists(st.sampled_from(chosen), min_size=3, max_size=9))
    return PackCase(
        nodes,
        bound,
        [PendingPod(f"p{number}", shape, uid=f"{number}") for number, shape in enumerate(copies)],
        [CompiledPool("pool-0", requirements=racks)],
        plain_types,
    )


requests_in_reach = st.sampled_from([(("cpu", 300),), (("cpu", 900),), (("cpu", 1500),)])


@st.composite
def pack_cases(draw):
    nodes = draw(st.just([]) | node_rows())
    bound = []
    if nodes:
        bound = draw(st.lists(st.tuples(shapes, st.integers(0, len(nodes) - 1)), max_size=3))
    chosen = draw(st.lists(pod_shapes(), min_size=2, max_size=4))
    copies = draw(st.lists(st.sampled_from(chosen), min_size=2, max_size=8))
    found = draw(pools())
    usage = {
        pool.name: {"cpu": draw(st.sampled_from([0, 2000])), "nodes": draw(st.integers(0, 1))}
        for pool in found
    }
    return PackCase(
        nodes,
        bound,
        [PendingPod(f"p{number}", shape, uid=f"{number}") for number, shape in enumerate(copies)],
        found,
        draw(instance_types()),
        draw(up_to(2, daemon_shapes)),
        usage,
        draw(up_to(2, stock_outs)),
        draw(options),
    )
