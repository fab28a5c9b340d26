"""What changed since a plan was made, and whether its moves may still be made."""

from dataclasses import replace

import pytest

from karpool.cluster import kinds
from karpool.consolidation.execution.validation import (
    command_timeout,
    is_stale,
    same_outcome,
    validate_all,
    what_if,
)
from karpool.consolidation.planning.plan import MoveKind
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.reasons import MoveFailure
from karpool.consolidation.policy.settings import DEFAULTS, PlanSettings
from karpool.packing.new_nodes.offerings import StockOut
from tests.consolidation.built import NOW, BuiltCluster

HELD = {"karpenter.sh/do-not-disrupt": "true"}


def validate(move, view, settings=DEFAULTS, now=0.0, *, arrived=()):
    """Why this move alone must not be made any more; `arrived` are its new nodes once they are there."""
    return validate_all((move,), view, settings, now, arrived={move.id: arrived}, targets=arrived)[move.id]


def deleting() -> BuiltCluster:
    cluster = BuiltCluster()
    cluster.pool()
    cluster.node("target", annotations=HELD)
    cluster.pod("busy", "target", cpu=1000)
    cluster.node("spare")
    cluster.pod("web", "spare", cpu=1000, labels={"app": "web"})
    return cluster


def replacing() -> BuiltCluster:
    cluster = BuiltCluster()
    cluster.pool()
    cluster.node("large", "large")
    cluster.pod("web", "large")
    return cluster


def only_move(cluster: BuiltCluster):
    (move,) = plan_consolidation(cluster.view(), now=NOW).moves
    return move


def full(cluster):
    cluster.pod("new", "target", cpu=2500)


def protected(cluster):
    cluster.pod("web", "spare", cpu=1000, annotations=HELD)


def more_pods(cluster):
    cluster.pod("late", "spare", cpu=100)


def larger(cluster):
    cluster.pod("web", "spare", cpu=3500)


def held_by_budget(cluster):
    cluster.budget("web", {"app": "web"}, allowed=0)


def closed(cluster):
    cluster.pool(disruption={"budgets": [{"nodes": "0"}]})


def stopped(cluster):
    cluster.stop()


def cordoned(cluster):
    cluster.node("target", annotations=HELD, taints=[{"key": "x", "effect": "NoSchedule"}])


def renewed(cluster):
    cluster.gone(kinds.NODECLAIMS, "", "claim-spare")
    cluster.claim("other", provider="test:///spare", labels={"karpenter.sh/nodepool": "default"})


def gone(cluster):
    cluster.gone(kinds.NODES, "", "spare")


def emptied(cluster):
    cluster.gone(kinds.PODS, "team", "web")


def scored(cluster):
    cluster.pool(annotations={"karpool.dev/consolidation-policy": "Balanced"})
    cluster.pod("web", "spare", cpu=1000, priority=1_000_000_000)
    for number in range(4):
        cluster.node(f"idle-{number}", "small", annotations=HELD)


@pytest.mark.parametrize(
    ("change", "code", "failure"),
    [
        (full, "no_room", MoveFailure.SCHEDULING),
        (larger, "no_room", MoveFailure.SCHEDULING),
        (cordoned, "no_room", MoveFailure.SCHEDULING),
        (protected, "pod_do_not_disrupt", MoveFailure.CHURN),
        (held_by_budget, "pdb_blocked", MoveFailure.CHURN),
        (more_pods, "new_pod", MoveFailure.CHURN),
        (renewed, "replaced", MoveFailure.CHURN),
        (gone, "gone", MoveFailure.CHURN),
        (emptied, "changed", MoveFailure.CHURN),
        (closed, "budget", MoveFailure.BUDGET),
        (stopped, "stopped", MoveFailure.BUDGET),
    ],
)
def test_what_changed_stops_a_delete(change, code, failure):
    cluster = deleting()
    plan = plan_consolidation(cluster.view(), now=NOW)
    (move,) = plan.moves
    assert not validate(move, cluster.view(), now=NOW)
    change(cluster)
    (why, *_) = validate(move, cluster.view(), now=NOW)
    assert (why.reason, why.reason.failure) == (code, failure)
    assert is_stale(plan, cluster.view())


def test_the_score_is_worked_out_again():
    cluster = deleting()
    move = only_move(cluster)
    scored(cluster)
    (why,) = validate(move, cluster.view(), now=NOW)
    assert why.reason == "score"


def test_a_pod_that_left_meanwhile_is_no_hindrance():
    cluster = deleting()
    cluster.pod("second", "spare", cpu=500)
    move = only_move(cluster)
    emptied(cluster)
    assert not validate(move, cluster.view(), now=NOW)


class TestReplacements:
    def test_what_was_planned_must_still_be_for_sale(self):
        cluster = replacing()
        move = only_move(cluster)
        assert not validate(move, cluster.view(), now=NOW)
        out = [StockOut(choice.instance_type) for choice in move.new_nodes[0].options]
        (why,) = validate(move, cluster.view(unavailable=out), now=NOW)
        assert why.reason == "no_type"

    def test_once_the_new_node_is_there_nothing_more_is_bought_and_it_may_be_young(self):
        cluster = replacing()
        cluster.pool(disruption={"consolidateAfter": "10m"})
        move = only_move(cluster)
        cluster.node("fresh", "small", age=5)
        nothing_for_sale = [StockOut()]
        view = cluster.view(unavailable=nothing_for_sale)
        assert validate(move, view, now=NOW)
        assert not validate(move, view, now=NOW, arrived=["fresh"])

    def test_what_was_paid_for_is_not_scored_again(self):
        cluster = replacing()
        move = only_move(cluster)
        cluster.pool(annotations={"karpool.dev/consolidation-policy": "Balanced"})
        cluster.pod("web", "large", priority=1_000_000_000)
        for number in range(4):
            cluster.node(f"idle-{number}", "large", annotations=HELD)
        (why,) = validate(move, cluster.view(), now=NOW)
        assert why.reason == "score"
        cluster.node("fresh", "small", age=5)
        assert not validate(move, cluster.view(), now=NOW, arrived=["fresh"])


def test_moves_are_judged_one_on_top_of_the_other():
    """Two nodes each fit into the room that is left, but not both."""
    cluster = BuiltCluster()
    cluster.pool()
    cluster.node("target", annotations=HELD)
    cluster.pod("busy", "target", cpu=1000)
    moves = []
    for name in ("a", "b"):
        cluster.node(name, "small", annotations=HELD)
        cluster.pod(f"web-{name}", name, cpu=1800)
    for name, other in (("a", "b"), ("b", "a")):
        cluster.node(name, "small")
        moves += plan_consolidation(cluster.view(), now=NOW).moves
        cluster.node(name, "small", annotations=HELD)
        assert other
    for name in ("a", "b"):
        cluster.node(name, "small")
    results = validate_all(moves, cluster.view(), now=NOW)
    assert [bool(why) for why in results.values()] == [False, True]


def test_a_node_that_a_move_before_it_has_to_fall_back_on_does_not_go():
    """The place of the first pod is taken meanwhile; only the node that the second move takes has room."""
    cluster = BuiltCluster()
    cluster.pool()
    for name, cpu in (("one", 2500), ("two", 3400)):
        cluster.node(name, annotations=HELD)
        cluster.pod(f"busy-{name}", name, cpu=cpu)
    cluster.node("first")
    cluster.pod("web", "first", cpu=1000)
    cluster.node("second")
    cluster.pod("api", "second", cpu=500)
    moves = plan_consolidation(cluster.view(), now=NOW).moves
    assert [move.names for move in moves] == [("first",), ("second",)]
    cluster.pod("new", "one", cpu=1000)
    first, second = validate_all(moves, cluster.view(), now=NOW).values()
    assert not first
    assert [why.reason for why in second] == ["no_room"]


class TestWhatIf:
    def test_it_says_where_every_pod_would_go_whatever_holds_the_node(self):
        cluster = deleting()
        protected(cluster)
        cluster.stop()
        move = what_if(cluster.view(), ["spare"], now=NOW)
        assert [(pod.pod, pod.node) for pod in move.pods] == [("team/web", "target")]

    def test_or_names_the_pods_without_a_place(self):
        cluster = deleting()
        cluster.pool(
            requirements=[{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]
        )
        larger(cluster)
        why = what_if(cluster.view(), ["spare"], now=NOW)
        assert why[-1].about == "pod team/web"

    def test_and_knows_nodes_that_nobody_manages_or_that_are_not_there(self):
        cluster = deleting()
        cluster.node("foreign", managed=False)
        cluster.pod("odd", "foreign")
        assert what_if(cluster.view(), ["foreign"], now=NOW).kind is MoveKind.DELETE
        assert what_if(cluster.view(), ["nowhere"], now=NOW)[0].reason == "gone"


def test_a_second_simulation_confirms_only_what_was_planned():
    assert same_outcome(None, 0, (), unplaced=False)
    assert not same_outcome(None, 1, ("a",), unplaced=False)
    assert not same_outcome(("a",), 0, (), unplaced=False)
    assert same_outcome(("a",), 1, ("a", "b"), unplaced=False)
    assert not same_outcome(("a", "c"), 1, ("a", "b"), unplaced=False)
    assert not same_outcome(("a",), 1, ("a",), unplaced=True)


def test_a_command_has_between_ten_minutes_and_an_hour():
    assert [command_timeout(queued) for queued in (0, 10_000, 10**6)] == [600.0, 800.0, 3600.0]


def test_settings_are_those_of_the_moment():
    cluster = deleting()
    move = only_move(cluster)
    strict = PlanSettings(override=PolicyOverride(PolicyName.WHEN_EMPTY))
    assert validate(move, cluster.view(), strict, NOW)[0].reason == "policy_when_empty"


def test_a_move_without_nodes_is_refused():
    cluster = deleting()
    move = replace(only_move(cluster), nodes=(), pods=())
    assert [why.reason for why in validate(move, cluster.view(), now=NOW)] == ["changed"]
