"""Each rule alone holds a node, and the plan names the rule and what stands in the way."""

import pytest

from karpool.consolidation.planning.plan import ConsolidationPlan, MoveKind
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings
from karpool.model.kubernetes.times import rfc3339
from tests.consolidation.built import HOUR, NOW, BuiltCluster


def two_nodes(*, pool=None, spare=None, **pod) -> BuiltCluster:
    """A node whose pods fit on another, which stays for its own wish."""
    cluster = BuiltCluster()
    cluster.pool(**(pool or {}))
    cluster.node("stays", annotations={"karpenter.sh/do-not-disrupt": "true"})
    cluster.pod("busy", "stays", cpu=1000)
    cluster.node("spare", **(spare or {}))
    cluster.pod("web", "spare", **pod)
    return cluster


def why(plan: ConsolidationPlan, node: str = "spare") -> tuple[str, str]:
    held = {each.node: each for each in plan.held}
    return held[node].why[0].reason, held[node].why[0].about


def test_without_a_rule_the_node_goes_and_its_pod_has_a_destination():
    plan = plan_consolidation(two_nodes().view(), now=NOW)
    (move,) = plan.moves
    assert (move.kind, move.names) == (MoveKind.DELETE, ("spare",))
    assert [(pod.pod, pod.source, pod.node) for pod in move.pods] == [("team/web", "spare", "stays")]
    assert why(plan, "stays")[0] == "node_do_not_disrupt"


@pytest.mark.parametrize(
    ("changes", "code", "about"),
    [
        ({"annotations": {"karpenter.sh/do-not-disrupt": "true"}}, "pod_do_not_disrupt", "pod team/web"),
        ({"annotations": {"karpenter.sh/do-not-disrupt": "2h"}}, "pod_do_not_disrupt", "pod team/web"),
        ({"status": {"phase": "Pending"}}, "pod_starting", "pod team/web"),
        ({"pool": {"spec": {"replicas": 2}}}, "static", "nodepool default"),
        (
            {"pool": {"disruption": {"consolidateAfter": "Never"}}},
            "consolidation_disabled",
            "nodepool default",
        ),
        (
            {"pool": {"disruption": {"consolidationPolicy": "WhenEmpty"}}},
            "policy_when_empty",
            "nodepool default",
        ),
        ({"pool": {"disruption": {"consolidateAfter": "x"}}}, "nodepool_unreadable", "nodepool default"),
        ({"spare": {"conditions": {"Consolidatable": "Unknown"}}}, "not_consolidatable", "nodepool default"),
        ({"spare": {"initialized": False}}, "not_initialized", ""),
        ({"spare": {"managed": False}}, "unmanaged", ""),
        ({"spare": {"deleting": True}}, "deleting", ""),
        ({"spare": {"pool": "lost"}}, "nodepool_not_found", "nodepool lost"),
        ({"spare": {"labels": {"karpenter.sh/capacity-type": None}}}, "no_capacity_type_label", ""),
        ({"spare": {"labels": {"topology.kubernetes.io/zone": None}}}, "no_zone_label", ""),
    ],
)
def test_a_rule_holds_the_node(changes, code, about):
    plan = plan_consolidation(two_nodes(**changes).view(), now=NOW)
    assert not plan.moves
    assert why(plan) == (code, about)


def test_a_wish_that_has_run_out_or_cannot_be_read_holds_nothing():
    for wish in ("30m", "for a while", "false", "-1h"):
        cluster = two_nodes(annotations={"karpenter.sh/do-not-disrupt": wish})
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert [move.names for move in plan.moves] == [("spare",)]
        assert bool(plan.problems) == (wish != "30m")


def test_a_budget_that_allows_nothing_holds_the_node_of_its_pod():
    cluster = two_nodes(labels={"app": "web"})
    cluster.budget("web", {"app": "web"}, allowed=0)
    assert why(plan_consolidation(cluster.view(), now=NOW)) == ("pdb_blocked", "poddisruptionbudget team/web")
    cluster.budget("web", {"app": "web"}, allowed=1)
    assert plan_consolidation(cluster.view(), now=NOW).moves


def test_two_budgets_of_one_pod_hold_its_node():
    cluster = two_nodes(labels={"app": "web"})
    for name in ("one", "two"):
        cluster.budget(name, {"app": "web"}, allowed=5)
    assert why(plan_consolidation(cluster.view(), now=NOW))[0] == "multiple_pdbs"


def test_a_node_that_a_pending_pod_is_meant_for_stays():
    cluster = two_nodes()
    cluster.pod("soon", status={"nominatedNodeName": "spare"})
    assert why(plan_consolidation(cluster.view(), now=NOW))[0] == "nominated"


def test_a_node_that_a_move_takes_already_is_not_taken_again():
    assert why(plan_consolidation(two_nodes().view(in_flight=["spare"]), now=NOW))[0] == "in_queue"


class TestWaitingTimes:
    def test_pods_themselves_count_even_if_the_condition_lags(self):
        cluster = two_nodes(pool={"disruption": {"consolidateAfter": "10m"}}, start=rfc3339(NOW - 60))
        assert why(plan_consolidation(cluster.view(), now=NOW))[0] == "not_consolidatable"
        assert plan_consolidation(cluster.view(), now=NOW + 600).moves

    def test_the_pools_annotation_goes_before_its_field(self):
        pool = {
            "disruption": {"consolidateAfter": "Never"},
            "annotations": {"karpool.dev/consolidate-after": "5m"},
        }
        spare = {"conditions": {"Consolidatable": "Unknown"}}  # Karpenter no longer sets it
        assert plan_consolidation(two_nodes(pool=pool, spare=spare).view(), now=NOW).moves

    def test_a_node_in_its_quiet_time_receives_nothing_unless_that_is_allowed(self):
        cluster = BuiltCluster()
        cluster.pool(disruption={"consolidateAfter": "10m"})
        cluster.node("young", age=60, annotations={"karpenter.sh/do-not-disrupt": "true"})
        cluster.node("old")
        cluster.pod("web", "old", cpu=1800)
        kept = plan_consolidation(cluster.view(), now=NOW)
        assert not any(pod.node == "young" for move in kept.moves for pod in move.pods)
        loose = plan_consolidation(cluster.view(), PlanSettings(protect_young_targets=False), NOW)
        assert [pod.node for move in loose.moves for pod in move.pods] == ["young"]
        for value, homes in (("false", ["young"]), ("true", [])):
            annotations = {"karpool.dev/protect-young-targets": value}
            cluster.pool(disruption={"consolidateAfter": "10m"}, annotations=annotations)
            found = plan_consolidation(
                cluster.view(), PlanSettings(protect_young_targets=value == "false"), NOW
            )
            assert [pod.node for move in found.moves for pod in move.pods if pod.node] == homes

    def test_an_empty_node_may_have_a_waiting_time_of_its_own(self):
        for wait, moves in (("1h", 0), ("1m", 1)):
            cluster = BuiltCluster()
            cluster.pool(annotations={"karpool.dev/consolidate-after-empty": wait})
            cluster.node("empty", age=600)
            assert len(plan_consolidation(cluster.view(), now=NOW).moves) == moves


def test_young_nodes_and_well_used_ones_stay_when_asked():
    young = plan_consolidation(two_nodes().view(), PlanSettings(min_age_seconds=2 * HOUR), NOW)
    assert why(young)[0] == "young"
    used = plan_consolidation(two_nodes(cpu=2900).view(), PlanSettings(most_use=0.5), NOW)
    assert why(used)[0] == "well_used"


def test_a_move_that_scores_too_low_is_shown_with_its_score():
    cluster = BuiltCluster()
    cluster.pool(disruption={"consolidationPolicy": "Balanced"})
    for number in range(3):
        cluster.node(f"quiet-{number}", annotations={"karpenter.sh/do-not-disrupt": "true"})
    cluster.node("busy")
    for number in range(8):
        cluster.pod(f"web-{number}", "busy", cpu=400, priority=1_000_000_000)
    plan = plan_consolidation(cluster.view(), now=NOW)
    (rejected,) = plan.rejected
    assert rejected.why[0].reason == "score"
    assert rejected.move.score < 0.5
    assert len(rejected.move.pods) == 8
    assert why(plan, "busy")[0] == "score"
    loose = PlanSettings(override=PolicyOverride(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED))
    assert plan_consolidation(cluster.view(), loose, NOW).moves


def test_trivial_savings_are_not_worth_it_when_a_minimum_is_set():
    plan = plan_consolidation(two_nodes().view(), PlanSettings(min_savings_per_hour=0.5), NOW)
    assert [each.why[0].reason for each in plan.rejected] == ["small_saving"]


def test_a_node_whose_pods_fit_nowhere_names_them():
    cluster = BuiltCluster()
    cluster.pool(requirements=[{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}])
    cluster.node("full")
    cluster.pod("big", "full", cpu=3900)
    plan = plan_consolidation(cluster.view(), now=NOW)
    assert why(plan, "full")[1] == "pod team/big"


def test_every_node_is_either_moved_or_held():
    cluster = two_nodes()
    cluster.node("empty")
    cluster.node("foreign", managed=False)
    cluster.claim("coming")
    plan = plan_consolidation(cluster.view(), now=NOW)
    moved = [name for move in plan.moves for name in move.names]
    assert sorted([*moved, *(each.node for each in plan.held)]) == [
        "coming",
        "empty",
        "foreign",
        "spare",
        "stays",
    ]
