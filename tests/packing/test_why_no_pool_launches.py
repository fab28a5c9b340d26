import pytest

from karpool.model.karpenter.objects import CAPACITY_TYPE, SPOT, CompiledPool
from karpool.model.kubernetes.node import ARCH, HOSTNAME, ZONE
from karpool.model.kubernetes.pod_shape import AffinityTerm, TopologySpread
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.model.requirements import ValueSet
from karpool.model.taints import NO_SCHEDULE, Taint
from karpool.packing.new_nodes.offerings import StockOut
from karpool.packing.new_nodes.pack import pack_new_nodes
from karpool.packing.pool_reasons import show_pool
from karpool.packing.tables.room import snapshot_of
from tests.packing.pool_cases import catalogue, instance_type, one_of, pending

TYPES = catalogue(instance_type("small", 2, 4), instance_type("large", 8, 16))
WEB = LabelMatcher((LabelRequirement("app", "In", frozenset(("web",))),))
OWN = frozenset(("default",))
PORT = frozenset({("0.0.0.0", "TCP", 80)})


def reasons(pod, *pools, **settings):
    packing = pack_new_nodes(snapshot_of(()), [pod], pools, settings.pop("types", TYPES), **settings)
    (left,) = packing.left
    return [(show_pool(reason), reason.count) for reason in left.reasons]


@pytest.mark.parametrize(
    ("pool", "fields", "expected"),
    [
        pytest.param(
            CompiledPool("gpu", taints=(Taint(key="nvidia.com/gpu", effect=NO_SCHEDULE),)),
            {},
            [("pool gpu: taint nvidia.com/gpu:NoSchedule untolerated", 2)],
            id="taint",
        ),
        pytest.param(
            CompiledPool("general", limits={"cpu": 100_000}),
            {},
            [("pool general: limit cpu reached: 0 of 100 left, smallest type needs 2", 2)],
            id="limit",
        ),
        pytest.param(
            CompiledPool("general", limits={"nodes": 3}),
            {},
            [("pool general: limit nodes reached: 0 of 3 left", 2)],
            id="node limit",
        ),
        pytest.param(
            CompiledPool("general"),
            {"cpu": 200_000},
            [("pool general: no instance type has 200 cpu", 2)],
            id="size",
        ),
        pytest.param(
            CompiledPool("general", requirements={ARCH: one_of("amd64")}),
            {"node_selector": ((ARCH, "arm64"),)},
            [
                (
                    f"pool general: requirement {ARCH}: the pod wants In (arm64), the pool has In (amd64)",
                    2,
                )
            ],
            id="pool requirement",
        ),
        pytest.param(
            CompiledPool("general"),
            {"node_selector": (("team", "red"),)},
            [("pool general: requirement team: the pod wants In (red), the pool has no such label", 2)],
            id="unknown label",
        ),
        pytest.param(
            CompiledPool("general"),
            {"node_selector": ((ARCH, "arm64"),)},
            [("pool general: requirement kubernetes.io/arch In (arm64)", 2)],
            id="type requirement",
        ),
        pytest.param(
            CompiledPool("general"),
            {"node_selector": ((ZONE, "c"),)},
            [("pool general: zone c out of stock", 2)],
            id="stock",
        ),
        pytest.param(
            CompiledPool("general"),
            {"node_selector": ((CAPACITY_TYPE, SPOT),)},
            [("pool general: not sold in a zone and capacity type that pod and pool allow", 2)],
            id="not sold",
        ),
        pytest.param(
            CompiledPool("general", requirements={ARCH: one_of("riscv64")}),
            {},
            [("pool general: its requirements leave no instance type (on kubernetes.io/arch)", 0)],
            id="empty pool",
        ),
        pytest.param(
            CompiledPool("general"),
            {"node_terms": ()},
            [("pool general: no new node can meet the pod's own node requirements", 0)],
            id="impossible affinity",
        ),
        pytest.param(
            CompiledPool("general"),
            {"affinity": (AffinityTerm(WEB, HOSTNAME, OWN),)},
            [("pool general: pod affinity on a host name: a new node has no matching pod", 2)],
            id="host affinity",
        ),
        pytest.param(
            CompiledPool("general"),
            {"spreads": (TopologySpread(1, "no.such/key", True, WEB),)},
            [("pool general: no open domain for no.such/key", 2)],
            id="spread over a label that no pool has",
        ),
        pytest.param(
            CompiledPool(
                "general", requirements={ARCH: ValueSet(frozenset(("amd64", "arm64")), min_values=2)}
            ),
            {},
            [("pool general: too few instance types left for minValues", 2)],
            id="minValues",
        ),
        pytest.param(
            CompiledPool("general"),
            {"host_ports": PORT},
            [("pool general: daemons hold a host port the pod wants", 2)],
            id="host ports",
        ),
        pytest.param(
            CompiledPool("general", ready=False), {}, [("pool general: is not ready", 0)], id="not ready"
        ),
        pytest.param(
            CompiledPool("general", deleting=True), {}, [("pool general: is being deleted", 0)], id="deleting"
        ),
        pytest.param(
            CompiledPool("general", is_static=True),
            {},
            [("pool general: is static: its size is fixed", 0)],
            id="static",
        ),
    ],
)
def test_the_reason_names_what_is_in_the_way(pool, fields, expected):
    used = {"general": {"cpu": 100_000, "nodes": 3}}
    daemon = pending("daemon", cpu=1, gib=0, host_ports=PORT).shape

    found = reasons(
        pending("web", **fields), pool, usage=used, unavailable=[StockOut(zone="c")], daemons=[daemon]
    )

    assert found == expected


def test_each_type_is_counted_under_the_first_thing_against_it():
    types = catalogue(
        instance_type("arm", 8, 16, arch="arm64"),
        instance_type("sold-out", 8, 16),
        instance_type("tiny", 1, 1),
        instance_type("large", 8, 16),
    )
    pod = pending("web", cpu=4000, node_selector=((ARCH, "amd64"),))

    found = reasons(
        pod, CompiledPool("general", limits={"cpu": 4000}), types=types, unavailable=[StockOut("sold-out")]
    )

    assert found == [
        ("pool general: requirement kubernetes.io/arch In (amd64)", 1),
        ("pool general: zones a, b, c out of stock", 1),
        ("pool general: too small for 4 cpu and 1Gi memory", 1),
        ("pool general: limit cpu reached: 4 of 4 left, smallest type needs 8", 1),
    ]


def test_daemons_are_named_when_the_type_alone_would_do():
    daemon = pending("daemon", cpu=1000).shape

    found = reasons(pending("web", cpu=7500), CompiledPool("general"), daemons=[daemon])

    assert found == [("pool general: no instance type has 7500m cpu next to its daemons", 2)]


def test_every_pool_gives_its_own_reason():
    tainted = CompiledPool("tainted", weight=10, taints=(Taint(key="only", value="gpu", effect=NO_SCHEDULE),))

    found = reasons(pending("web", cpu=99_000), tainted, CompiledPool("general"))

    assert [text for text, _ in found] == [
        "pool tainted: taint only=gpu:NoSchedule untolerated",
        "pool general: no instance type has 99 cpu",
    ]
