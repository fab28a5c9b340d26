from collections import Counter
from time import perf_counter

import pytest

from karpool.model.karmada.binding import read_binding
from karpool.scheduler.cycle.decision import ScheduleReason, SchedulingMode
from karpool.scheduler.cycle.plugins import AffinityPeers, peers_of
from karpool.scheduler.cycle.schedule import decide, plan_cycle
from karpool.scheduler.cycle.settings import SchedulingSettings
from tests.scheduler.deciding import schedule
from tests.scheduler.placing import DUPLICATED, DYNAMIC, binding, cluster, clusters, raw_binding, rooms

GPU_ONLY = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
BARE = [{"key": "cluster.karmada.io/not-ready", "effect": "NoExecute"}]
BY_REGION = [
    {"spreadByField": "region", "minGroups": 1, "maxGroups": 2},
    {"spreadByField": "cluster", "minGroups": 1, "maxGroups": 2},
]


def why(given, member, **more):
    decision = schedule(given, [member], rooms(m1=5), **more)
    refused = decision.attempts[-1].refused
    return (refused[0].reason, refused[0].detail) if refused else None


@pytest.mark.parametrize(
    ("given", "member", "expected"),
    [
        pytest.param(
            {},
            {"apis": ()},
            ("APIEnablement", "cluster(s) did not have the API resource"),
            id="the API is missing",
        ),
        pytest.param({"previous": {"m1": 1}}, {"apis": ()}, None, id="a target needs no API"),
        pytest.param(
            {},
            {"taints": GPU_ONLY},
            ("TaintToleration", "cluster(s) had untolerated taint {gpu=yes:NoSchedule}"),
            id="a taint with a value",
        ),
        pytest.param(
            {},
            {"taints": BARE},
            ("TaintToleration", "cluster(s) had untolerated taint {cluster.karmada.io/not-ready:NoExecute}"),
            id="a taint without a value",
        ),
        pytest.param(
            {"previous": {"m1": 1}}, {"taints": BARE}, None, id="a target's taint is not our business"
        ),
        pytest.param(
            {"placement": {"clusterTolerations": [{"key": "gpu", "operator": "Exists"}]}},
            {"taints": GPU_ONLY},
            None,
            id="tolerated",
        ),
        pytest.param(
            {"placement": {"clusterAffinity": {"clusterNames": ["m2"]}}, "previous": {"m1": 1}},
            {},
            ("ClusterAffinity", "cluster(s) did not match the placement cluster affinity constraint"),
            id="an edited affinity removes targets too",
        ),
        pytest.param(
            {"placement": {"spreadConstraints": BY_REGION}},
            {"region": ""},
            ("SpreadConstraint", "cluster(s) did not have region property"),
            id="no region to spread by",
        ),
        pytest.param(
            {"placement": {"spreadConstraints": [{"spreadByField": "zone", "minGroups": 1, "maxGroups": 1}]}},
            {},
            ("SpreadConstraint", "cluster(s) did not have zones property"),
            id="no zones to spread by",
        ),
        pytest.param(
            {"evicting": ["m1"], "previous": {"m1": 1}},
            {},
            ("ClusterEviction", "cluster(s) is in the process of eviction"),
            id="being drained",
        ),
    ],
)
def test_a_filter_refuses_with_its_reason(given, member, expected):
    assert why(binding(1, DYNAMIC, **given), cluster("m1", **member)) == expected


def test_the_fit_error_counts_clusters_by_reason():
    members = [cluster("m1", apis=()), *clusters("m2", "m3")]
    given = binding(1, DYNAMIC, placement={"clusterAffinity": {"clusterNames": ["m1", "other"]}})

    decision = schedule(given, members, {})

    assert decision.reason is ScheduleReason.NO_CLUSTER_FIT
    assert decision.targets == ()
    assert decision.message == (
        "0/3 clusters are available: 1 cluster(s) did not have the API resource, "
        "2 cluster(s) did not match the placement cluster affinity constraint."
    )


def test_deleting_clusters_are_silent():
    decision = schedule(binding(1, DYNAMIC), [cluster("m1", deleting=True)], {})

    assert decision.message == "0/1 clusters are available: no cluster exists."


def test_a_filter_that_is_switched_off_refuses_nothing():
    settings = SchedulingSettings(plugins=frozenset(("ClusterAffinity",)))

    decision = schedule(binding(1, DYNAMIC), [cluster("m1", apis=(), taints=GPU_ONLY)], rooms(m1=5), settings)

    assert decision.is_success


def test_overflow_clusters_are_for_workloads():
    term = {"affinityName": "a", "clusterNames": ["m1"], "overflowAffinities": [{"clusterNames": ["m2"]}]}
    placed = {"clusterAffinities": [term]}
    members = clusters("m1", "m2")

    workload = schedule(binding(9, DYNAMIC, placement=placed), members, rooms(m1=5, m2=5))
    plain = schedule(binding(0, DYNAMIC, placement=placed, workload=False), members, {})

    assert workload.shown_targets == "{m1:5, m2:4}"
    assert [target.name for target in plain.targets] == ["m1"]


# Workload affinity


def of_group(name, targets, **groups):
    raw = raw_binding(1, DUPLICATED, previous=dict.fromkeys(targets, 1), meta={"name": name})
    raw["spec"]["workloadAffinityGroups"] = groups
    return read_binding(raw)


def test_friends_must_all_be_there():
    mine = of_group("web-deployment", (), affinityGroup="app=shop")
    others = [
        of_group("db-deployment", ("m1", "m2"), affinityGroup="app=shop"),
        of_group("cache-deployment", ("m2", "m3"), affinityGroup="app=shop"),
        of_group("new-deployment", (), affinityGroup="app=shop"),
        of_group("stranger-deployment", ("m9",), affinityGroup="app=other"),
    ]

    assert peers_of(mine, [mine, *others]) == AffinityPeers(frozenset(("m2",)), frozenset())


def test_foes_are_wherever_one_of_them_is():
    mine = of_group("web-deployment", ("m7",), antiAffinityGroup="app=shop")
    others = [
        of_group(f"o{number}-deployment", (f"m{number}",), antiAffinityGroup="app=shop") for number in (1, 2)
    ]

    assert peers_of(mine, [mine, *others]).foes == {"m1", "m2"}


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        pytest.param(
            AffinityPeers(frozenset(("m2",))), ["m2", "m3"], id="with friends, and where it is already"
        ),
        pytest.param(AffinityPeers(None), ["m1", "m2", "m3"], id="the first of its group goes anywhere"),
        pytest.param(AffinityPeers(None, frozenset(("m1", "m3"))), ["m2", "m3"], id="away from foes"),
    ],
)
def test_peers_filter_only_behind_their_gate(peers, expected):
    given, members = binding(1, DUPLICATED, previous={"m3": 1}), clusters("m1", "m2", "m3")

    gated = schedule(given, members, {}, SchedulingSettings(workload_affinity=True), peers=peers)
    ungated = schedule(given, members, {}, peers=peers)

    assert sorted(target.name for target in gated.targets) == expected
    assert len(ungated.targets) == 3


class Noting:
    """Counts what it is told of."""

    def __init__(self):
        self.seen, self._began = Counter(), perf_counter()

    def plugin(self, plugin, point, result, seconds):
        assert 0 <= seconds <= perf_counter() - self._began
        self.seen[plugin, result] += 1

    def point(self, point, result, seconds):
        assert 0 <= seconds <= perf_counter() - self._began
        self.seen[point, result] += 1


def test_a_decision_that_is_timed_is_the_same_decision():
    members = [cluster("m1"), cluster("m2", apis=()), cluster("m3", taints=GPU_ONLY), cluster("m4")]
    given, noting = binding(replicas=4, previous={"m4": 1}), Noting()
    plan = plan_cycle(given, members, mode=SchedulingMode.FRESH, timing=noting)
    known = rooms(m1=5, m4=5)
    assert decide(plan, known) == decide(plan_cycle(given, members, mode=SchedulingMode.FRESH), known)
    assert noting.seen == {
        ("APIEnablement", "Success"): 3,
        ("APIEnablement", "Unschedulable"): 1,
        ("TaintToleration", "Success"): 2,
        ("TaintToleration", "Unschedulable"): 1,
        ("ClusterAffinity", "Success"): 2,
        ("Filter", "Success"): 2,
        ("Filter", "Unschedulable"): 2,
        ("ClusterLocality", "Success"): 2,
        ("Score", "Success"): 1,
    }
