import pytest

from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT, CompiledPool
from karpool.model.kubernetes.meta import ObjectMeta
from karpool.model.kubernetes.node import ARCH, HOSTNAME, INSTANCE_TYPE, ZONE, Node, NodeStatus
from karpool.model.kubernetes.pod_shape import (
    AffinityTerm,
    PodShape,
    TopologySpread,
    WeightedNodeTerm,
    WeightedTerm,
)
from karpool.model.labels import EVERYTHING, LabelMatcher, LabelRequirement
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.taints import NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint, Toleration
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.new_nodes.pack import PackOptions, in_order, pack_new_nodes
from karpool.packing.new_nodes.pack_result import LaunchOption, PendingPod
from karpool.packing.pool_reasons import show_pool
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement, snapshot_of
from tests.packing.pool_cases import catalogue, instance_type, one_of, pending

NOTHING = snapshot_of(())
GENERAL = CompiledPool("general")
SMALL, LARGE = instance_type("small", 2, 4, price=1.0), instance_type("large", 8, 16, price=3.0)
BOTH = catalogue(SMALL, LARGE)
WEB = LabelMatcher((LabelRequirement("app", "In", frozenset(("web",))),))
OWN = frozenset(("default",))
LABELS = (("app", "web"),)


def pack(pods, pools=(GENERAL,), types=BOTH, snapshot=NOTHING, **settings):
    return pack_new_nodes(snapshot, pods, pools, types, **settings)


def planned(packing):
    return [(node.pool, sorted(node.pods), node.chosen.instance_type) for node in packing.nodes]


def test_a_planned_node_keeps_every_type_that_holds_it_and_the_cheapest_is_chosen():
    packing = pack([pending("web")])

    (node,) = packing.nodes
    assert [option.instance_type for option in node.options] == ["small", "large"]
    assert node.chosen == LaunchOption("small", "a", ON_DEMAND, 1.0)
    assert node.requests == {"cpu": 1000, "memory": 1 << 30, "pods": 1}


def test_the_largest_pod_goes_first_and_small_ones_join_it():
    pods = [pending("small", cpu=500), pending("large", cpu=6000), pending("middle", cpu=1500)]

    packing = pack(pods)

    assert packing.nodes[0].pods == ("large", "middle", "small")


def test_equal_pods_go_by_age_then_uid():
    shape = pending("x").shape
    pods = [
        PendingPod("young", shape, "2026-01-02T00:00:00Z", "1"),
        PendingPod("second", shape, "2026-01-01T00:00:00Z", "2"),
        PendingPod("first", shape, "2026-01-01T00:00:00Z", "1"),
    ]

    assert pack(pods).nodes[0].pods == ("first", "second", "young")


def test_the_planned_node_with_the_fewest_pods_is_tried_first():
    apart = pending("x", cpu=1500, labels=LABELS, anti_affinity=(AffinityTerm(WEB, HOSTNAME, OWN),)).shape
    pods = [
        PendingPod("one", apart),
        PendingPod("two", apart),
        *(pending(f"p{n}", cpu=100) for n in range(4)),
    ]

    packing = pack(pods)

    assert [len(node.pods) for node in packing.nodes] == [3, 3]


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([CompiledPool("a"), CompiledPool("b")], "b"),
        ([CompiledPool("a", weight=1), CompiledPool("b")], "a"),
        ([CompiledPool("a", weight=1), CompiledPool("b", weight=50)], "b"),
    ],
    ids=["last name first", "weight beats name", "heaviest first"],
)
def test_pools_go_by_weight_then_by_name_from_the_end(pools, expected):
    assert in_order(pools)[0].name == expected
    assert pack([pending("web")], pools).nodes[0].pool == expected


def test_a_tainted_pool_takes_only_pods_that_tolerate_it_and_startup_taints_do_not_count():
    gpu = CompiledPool("gpu", weight=10, taints=(Taint(key="gpu", effect=NO_SCHEDULE),))
    starting = CompiledPool("general", startup_taints=(Taint(key="cni", effect=NO_SCHEDULE),))
    tolerant = pending("tolerant", cpu=7000, tolerations=(Toleration(key="gpu", operator="Exists"),))

    packing = pack([pending("plain", cpu=7000), tolerant], [gpu, starting])

    assert planned(packing) == [("general", ["plain"], "large"), ("gpu", ["tolerant"], "large")]


def test_a_pod_narrows_zone_architecture_and_capacity_type():
    types = catalogue(
        instance_type("arm", arch="arm64", kinds=(SPOT, ON_DEMAND)), instance_type("x86", price=0.1)
    )
    term = NodeTerm(((ZONE, one_of("b", "c")), (CAPACITY_TYPE, one_of(SPOT))))
    pod = pending("web", node_selector=((ARCH, "arm64"),), node_terms=(term,))

    (node,) = pack([pod], types=types).nodes

    assert node.chosen == LaunchOption("arm", "b", SPOT, 1.0)
    assert node.requirements[ZONE] == one_of("b", "c")


def test_the_second_term_of_a_node_affinity_is_used_when_the_first_cannot_be():
    terms = (NodeTerm(((ZONE, one_of("nowhere")),)), NodeTerm(((ZONE, one_of("c")),)))

    assert pack([pending("web", node_terms=terms)]).nodes[0].chosen.zone == "c"


def test_a_volume_pins_the_zone_and_its_second_zone_is_used_when_the_first_is_out_of_stock():
    volume = (NodeTerm(((ZONE, one_of("b")),)), NodeTerm(((ZONE, one_of("c")),)))
    pod = pending("db", volume_terms=(volume,))

    assert pack([pod]).nodes[0].chosen.zone == "b"
    assert pack([pod], unavailable=[StockOut(zone="b")]).nodes[0].chosen.zone == "c"


def test_two_volumes_in_different_zones_fit_nowhere():
    volumes = ((NodeTerm(((ZONE, one_of("a")),)),), (NodeTerm(((ZONE, one_of("b")),)),))

    packing = pack([pending("db", volume_terms=volumes)])

    assert [each.pod for each in packing.left] == ["db"]


def test_pods_with_contradicting_selectors_do_not_share_a_node():
    team = CompiledPool("team", requirements={"team": one_of("red", "blue")})
    pods = [pending(colour, node_selector=(("team", colour),), cpu=100) for colour in ("red", "blue")]

    assert len(pack(pods, [team]).nodes) == 2


def test_a_stock_out_is_never_chosen():
    pod = pending("web")

    packing = pack([pod], unavailable=[StockOut("small"), StockOut("large", "a", ON_DEMAND)])

    assert packing.nodes[0].options == (LaunchOption("large", "b", ON_DEMAND, 3.0),)


def test_daemons_take_room_only_where_they_run():
    daemon = pending("logs", cpu=1500, node_selector=((ARCH, "amd64"),)).shape
    tainted = pending("taints", cpu=1500, node_selector=(("no.such/label", "x"),)).shape

    assert pack([pending("web")], daemons=[daemon]).nodes[0].chosen.instance_type == "large"
    assert pack([pending("web")], daemons=[tainted]).nodes[0].chosen.instance_type == "small"


def test_a_host_port_of_a_daemon_or_of_another_pod_keeps_a_pod_away():
    port = frozenset({("0.0.0.0", "TCP", 80)})
    daemon = pending("proxy", cpu=100, host_ports=port).shape
    pods = [pending(f"web-{n}", cpu=100, host_ports=port) for n in range(2)]

    assert len(pack(pods).nodes) == 2
    assert len(pack(pods, daemons=[daemon]).left) == 2


@pytest.mark.parametrize(
    ("limits", "mode", "nodes"),
    [
        ({"cpu": 16_000}, "pessimistic", 2),
        ({"cpu": 16_000}, "exact", 3),
        ({"nodes": 1}, "pessimistic", 1),
        ({"cpu": 1000}, "exact", 0),
    ],
    ids=["charged for the largest type", "charged for the cheapest type", "nodes", "too low for any type"],
)
def test_limits_stop_a_pool(limits, mode, nodes):
    apart = (AffinityTerm(WEB, HOSTNAME, OWN),)
    pods = [pending(f"web-{n}", labels=LABELS, anti_affinity=apart) for n in range(3)]

    packing = pack(pods, [CompiledPool("general", limits=limits)], options=PackOptions(limits=mode))

    assert (len(packing.nodes), len(packing.left)) == (nodes, 3 - nodes)


def test_what_is_in_use_or_in_flight_counts_against_the_limits():
    limited = CompiledPool("general", limits={"cpu": 10_000, "nodes": 5})

    assert not pack([pending("web")], [limited], usage={"general": {"cpu": 4_000, "nodes": 1}}).left
    assert pack([pending("web")], [limited], usage={"general": {"cpu": 9_000, "nodes": 1}}).left
    assert pack([pending("web")], [limited], usage={"general": {"nodes": 5}}).left


def test_the_next_pool_is_used_when_one_has_reached_its_limit():
    pools = [CompiledPool("first", weight=10, limits={"nodes": 1}), CompiledPool("second")]
    pods = [pending(f"web-{n}", cpu=7000) for n in range(2)]

    assert [node.pool for node in pack(pods, pools).nodes] == ["first", "second"]


def test_min_values_keeps_enough_types():
    choosy = CompiledPool(
        "choosy", requirements={ARCH: ValueSet(frozenset(("amd64", "arm64")), min_values=2)}
    )
    types = catalogue(instance_type("x86", 2), instance_type("arm", 2, arch="arm64"), instance_type("big", 8))

    packing = pack([pending("fits"), pending("too-large", cpu=7000)], [choosy], types)

    assert [each.pod for each in packing.left] == ["too-large"]
    assert {option.instance_type for option in packing.nodes[0].options} == {"x86", "arm", "big"}


def test_a_type_of_unknown_price_comes_last_or_is_left_out():
    types = catalogue(instance_type("mystery", 2, price=None), instance_type("dear", 64, price=99.0))

    last = pack([pending("web")], types=types)
    skipped = pack([pending("web")], types=types, options=PackOptions(needs_price=True))

    assert [option.price_per_hour for option in last.nodes[0].options] == [99.0, None]
    assert [each.instance_type for each in skipped.nodes[0].options] == ["dear"]


def test_the_cheapest_zone_is_taken_where_zones_are_equally_good():
    types = catalogue(
        instance_type("t", price=2.0, zones=("a", "c")).sold_as(
            [
                *instance_type("t", price=2.0, zones=("a", "c")).offerings,
                *instance_type("t", price=1.0, zones=("b",)).offerings,
            ]
        )
    )
    spread = (TopologySpread(1, ZONE, True, WEB),)
    pods = [pending(f"web-{n}", cpu=3000, labels=LABELS, spreads=spread) for n in range(3)]

    assert [node.chosen.zone for node in pack(pods, types=types).nodes] == ["b", "a", "c"]


def test_a_zone_without_stock_is_no_domain_to_spread_over():
    spread = (TopologySpread(1, ZONE, True, WEB),)
    pods = [pending(f"web-{n}", cpu=6000, labels=LABELS, spreads=spread) for n in range(6)]

    packing = pack(pods, unavailable=[StockOut(zone="c")])

    assert sorted(node.chosen.zone for node in packing.nodes) == ["a", "a", "a", "b", "b", "b"]


def test_existing_pods_of_a_zone_count_for_spreading_new_nodes():
    node = NodeRow("n1", {HOSTNAME: "n1", ZONE: "a"}, (), {"cpu": 100, "pods": 10})
    spread = (TopologySpread(1, ZONE, True, WEB),)
    pods = [pending(f"web-{n}", labels=LABELS, spreads=spread) for n in range(2)]
    here = snapshot_of([node])
    occupied = here.minus([PodPlacement(0, PodShape(namespace="default", labels=LABELS))])

    assert sorted(each.chosen.zone for each in pack(pods, snapshot=occupied).nodes) == ["b", "c"]


def test_existing_nodes_are_filled_first_by_name_and_uninitialised_ones_last():
    room = {"cpu": 1000, "memory": 4 << 30, "pods": 10}
    nodes = [
        NodeRow("a", {HOSTNAME: "a", "karpenter.sh/nodepool": "general"}, (), room),
        NodeRow("c", {HOSTNAME: "c"}, (), room),
        NodeRow("b", {HOSTNAME: "b"}, (), room),
    ]
    pods = [pending(f"web-{n}") for n in range(4)]

    packing = pack(pods, snapshot=snapshot_of(nodes))

    assert packing.placed == {"web-0": "b", "web-1": "c", "web-2": "a"}
    assert [node.pods for node in packing.nodes] == [("web-3",)]
    assert len(pack(pods, snapshot=snapshot_of(nodes), options=PackOptions(existing=False)).placed) == 0


def test_a_pod_waits_for_the_friend_that_is_placed_after_it():
    follower = pending("large-follower", cpu=1500, affinity=(AffinityTerm(WEB, ZONE, OWN),))
    friend = pending("small-friend", cpu=100, labels=LABELS, node_selector=((ZONE, "c"),))

    packing = pack([follower, friend])

    assert not packing.left
    assert {node.chosen.zone for node in packing.nodes} == {"c"}


def test_zone_anti_affinity_uses_every_zone_in_one_go():
    apart = (AffinityTerm(WEB, ZONE, OWN),)
    pods = [pending(f"web-{n}", labels=LABELS, anti_affinity=apart) for n in range(4)]

    packing = pack(pods)

    assert sorted(node.chosen.zone for node in packing.nodes) == ["a", "b", "c"]
    assert len(packing.left) == 1


def test_a_pod_that_others_avoid_settles_its_zone():
    lonely = pending("lonely", cpu=1500, anti_affinity=(AffinityTerm(EVERYTHING, ZONE, OWN),))
    plain = [pending(f"plain-{n}", cpu=7000) for n in range(2)]

    packing = pack([lonely, *plain])

    zones = {pod: node.chosen.zone for node in packing.nodes for pod in node.pods}
    assert not packing.left
    assert zones["lonely"] not in (zones["plain-0"], zones["plain-1"])


class TestPreferences:
    PREFERS_C = (WeightedNodeTerm(1, NodeTerm(((ZONE, one_of("c")),))),)

    def test_are_met_when_they_can_be(self):
        assert pack([pending("web", preferred_nodes=self.PREFERS_C)]).nodes[0].chosen.zone == "c"

    def test_are_dropped_when_they_cannot(self):
        packing = pack([pending("web", preferred_nodes=self.PREFERS_C)], unavailable=[StockOut(zone="c")])

        assert packing.nodes[0].chosen.zone == "a"

    def test_are_ignored_on_request(self):
        packing = pack(
            [pending("web", preferred_nodes=self.PREFERS_C)], options=PackOptions(preferences="ignore")
        )

        assert packing.nodes[0].chosen.zone == "a"

    def test_the_heaviest_is_tried_first(self):
        prefers_b = WeightedNodeTerm(10, NodeTerm(((ZONE, one_of("b")),)))

        assert (
            pack([pending("web", preferred_nodes=(*self.PREFERS_C, prefers_b))]).nodes[0].chosen.zone == "b"
        )

    def test_soft_anti_affinity_and_soft_spread_open_new_nodes(self):
        term = AffinityTerm(WEB, HOSTNAME, OWN)
        softly = {"preferred_anti_affinity": (WeightedTerm(1, term),)}
        spread = {"spreads": (TopologySpread(1, HOSTNAME, False, WEB),)}
        for fields in (softly, spread):
            pods = [pending(f"web-{n}", cpu=100, labels=LABELS, **fields) for n in range(3)]

            assert len(pack(pods).nodes) == 3
            assert len(pack(pods, options=PackOptions(preferences="ignore")).nodes) == 1
            assert not pack(pods, [CompiledPool("general", limits={"nodes": 1})]).left

    def test_a_softly_tainted_pool_is_the_last_resort(self):
        soft = CompiledPool("soft", weight=100, taints=(Taint(key="old", effect=PREFER_NO_SCHEDULE),))

        assert pack([pending("web")], [soft, GENERAL]).nodes[0].pool == "general"
        assert pack([pending("web")], [soft]).nodes[0].pool == "soft"
        assert (
            pack([pending("web")], [soft, GENERAL], options=PackOptions(preferences="ignore")).nodes[0].pool
            == "soft"
        )


def test_compiled_offerings_follow_the_catalogue():
    types = catalogue(SMALL)
    offerings = Offerings(types)
    pod = pending("web", cpu=7000)
    assert pack([pod], types=offerings).left
    assert offerings.for_pool(GENERAL) is offerings.for_pool(GENERAL)

    labels = {INSTANCE_TYPE: "large", ZONE: "a", CAPACITY_TYPE: ON_DEMAND, ARCH: "amd64"}
    status = NodeStatus(allocatable={"cpu": "8", "memory": "32Gi", "pods": "110"})
    types.learn(Node(metadata=ObjectMeta(name="large-node", labels=labels), status=status))

    assert not pack([pod], types=offerings).left


def test_requests_beyond_any_number_fit_nowhere_and_overflow_nothing():
    pods = [pending("huge", cpu=2**63 - 1), pending("small")]

    packing = pack(pods, daemons=[pending("daemon", cpu=100).shape])

    assert [each.pod for each in packing.left] == ["huge"]


def test_no_pods_no_pools_and_no_types_are_answers_too():
    assert pack([]).nodes == ()
    assert [show_pool(reason) for reason in pack([pending("web")], []).left[0].reasons] == [
        "there is no pool"
    ]
    assert len(pack([pending("web")], types=catalogue()).left) == 1
