"""How many nodes may go at once, when, and who may stop everything."""

import json

import pytest

from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.settings import (
    DisruptionRate,
    PlanSettings,
    parse_rate,
    parse_window,
    parse_windows,
)
from karpool.consolidation.view import NodeRemoval
from karpool.model.errors import Invalid
from karpool.model.kubernetes.times import parse_rfc3339
from tests.consolidation.built import HOUR, NOW, BuiltCluster


def empty_nodes(count: int, *, pools=("default",), **pool) -> BuiltCluster:
    cluster = BuiltCluster()
    for name in pools:
        cluster.pool(name, **pool)
        for number in range(count):
            cluster.node(f"{name}-{number}", pool=name)
    return cluster


def gone(cluster: BuiltCluster, settings: PlanSettings | None = None, now: float = NOW, **view) -> int:
    return sum(
        len(move.nodes)
        for move in plan_consolidation(cluster.view(**view), settings or PlanSettings(), now).moves
    )


@pytest.mark.parametrize(
    ("budgets", "most"),
    [
        ([{"nodes": "10%"}], 1),
        ([{"nodes": "3"}], 3),
        ([{"nodes": "0"}], 0),
        ([], 10),
        (None, 1),  # the default of 10%
        ([{"nodes": "0", "reasons": ["Underutilized"]}], 10),
        ([{"nodes": "2", "reasons": ["Empty"]}, {"nodes": "50%"}], 2),
        ([{"nodes": "0", "schedule": "0 0 1 1 *", "duration": "1m"}], 10),
    ],
)
def test_the_smallest_active_budget_decides(budgets, most):
    cluster = empty_nodes(10, disruption={"budgets": budgets})
    assert gone(cluster) == most
    assert gone(cluster, PlanSettings(heed_budgets=False)) == 10


def test_nodes_that_are_down_or_leave_or_are_in_flight_use_up_the_budget():
    cluster = empty_nodes(7, disruption={"budgets": [{"nodes": "4"}]})
    cluster.node("down", ready=False, annotations={"karpenter.sh/do-not-disrupt": "true"})
    assert gone(cluster) == 3
    cluster.node("leaves", deleting=True)
    assert gone(cluster) == 2
    assert gone(cluster, in_flight=["default-0"]) == 1


def test_what_the_budget_leaves_out_is_listed_with_the_budget():
    plan = plan_consolidation(empty_nodes(5, disruption={"budgets": [{"nodes": "2"}]}).view(), now=NOW)
    assert [each.why[0].reason for each in plan.rejected] == ["budget"] * 3
    assert all("allows 2 of 5" in each.why[0].detail for each in plan.held)


def test_a_budget_that_cannot_be_read_closes_its_own_pool_and_says_so():
    cluster = empty_nodes(3, pools=("good",))
    cluster.pool("bad", disruption={"budgets": [{"nodes": "5", "schedule": "@dailyish", "duration": "1h"}]})
    for number in range(3):
        cluster.node(f"bad-{number}", pool="bad")
    plan = plan_consolidation(cluster.view(), now=NOW)
    assert {node.pool for move in plan.moves for node in move.nodes} == {"good"}
    assert {each.why[0].reason for each in plan.rejected} == {"budget_unreadable"}
    assert "@dailyish" in plan.rejected[0].why[0].detail


def test_a_pool_whose_budget_cannot_be_read_is_shown_as_closed_even_if_nothing_could_go():
    cluster = empty_nodes(1, pools=("good",))
    cluster.pool("bad", disruption={"budgets": [{"nodes": "5", "schedule": "0 25 * * *", "duration": "1h"}]})
    plan = plan_consolidation(cluster.view(), now=NOW)
    closed = {pool.name: [why.reason for why in pool.why] for pool in plan.pools}
    assert closed == {"good": [], "bad": ["budget_unreadable"]}
    open_ = plan_consolidation(cluster.view(), PlanSettings(heed_budgets=False), now=NOW)
    assert not any(pool.why for pool in open_.pools)


@pytest.mark.parametrize(
    "annotations",
    [
        {"karpool.dev/disruption-rate": "often"},
        {"karpool.dev/maintenance-windows": "0 99 * * * 1h"},
        {"karpool.dev/disruption-budgets": "{"},
        {"karpool.dev/disruption-budgets": '{"nodes": 1}'},
        {"karpool.dev/consolidation-stop": "maybe"},
        {"karpool.dev/consolidation-moves": "teleport"},
        {"karpool.dev/consolidation-policy": "Wild"},
        {"karpool.dev/consolidate-after": "soon"},
    ],
)
def test_an_annotation_that_cannot_be_read_closes_its_own_pool_and_names_itself(annotations):
    cluster = empty_nodes(1, pools=("good",))
    cluster.pool("bad", annotations=annotations)
    cluster.node("bad-0", pool="bad")
    plan = plan_consolidation(cluster.view(), now=NOW)
    assert [move.names for move in plan.moves] == [("good-0",)]
    (held,) = plan.held
    assert next(iter(annotations)) in held.why[0].detail


def test_budgets_of_an_annotation_go_before_those_of_the_pool():
    annotations = {"karpool.dev/disruption-budgets": json.dumps([{"nodes": "2"}])}
    cluster = empty_nodes(5, disruption={"budgets": [{"nodes": "0"}]}, annotations=annotations)
    assert gone(cluster) == 2


class TestRates:
    def test_no_window_of_time_sees_more_than_the_rate(self):
        cluster = empty_nodes(10)
        settings = PlanSettings(rates=(DisruptionRate(4, HOUR),))
        assert gone(cluster, settings) == 4
        recent = [NodeRemoval("default", f"x{number}", NOW - 600) for number in range(3)]
        assert gone(cluster, settings, recent=recent) == 1
        assert gone(cluster, settings, NOW + HOUR, recent=recent) == 4

    def test_a_rate_for_all_is_shared_by_the_pools(self):
        cluster = empty_nodes(5, pools=("a", "b"))
        assert gone(cluster, PlanSettings(rates=(DisruptionRate(4, HOUR),))) == 4

    def test_a_rate_of_a_pool_is_its_own(self):
        cluster = empty_nodes(5, pools=("a", "b"), annotations={"karpool.dev/disruption-rate": "2/1h"})
        assert gone(cluster) == 4
        assert gone(cluster, recent=[NodeRemoval("a", "x", NOW - 60)]) == 3

    def test_it_is_written_as_nodes_per_time(self):
        assert parse_rate("5/1h30m") == DisruptionRate(5, 5400)
        assert parse_rate("10%/1h") == DisruptionRate(10, 3600, is_percent=True)
        for text in ("5", "101%/1h", "%/1h", "1.5%/1h"):
            with pytest.raises(Invalid, match="like"):
                parse_rate(text)

    def test_a_percentage_is_of_the_nodes_that_are_there_or_just_went(self):
        cluster = empty_nodes(10, pools=("a", "b"))
        assert gone(cluster, PlanSettings(rates=(parse_rate("15%/1h"),))) == 3
        recent = [NodeRemoval("a", f"x{number}", NOW - 60) for number in range(2)]
        # 15 % of 22, rounded up, and two of them are gone.
        assert gone(cluster, PlanSettings(rates=(parse_rate("15%/1h"),)), recent=recent) == 2
        own = empty_nodes(10, pools=("a", "b"), annotations={"karpool.dev/disruption-rate": "11%/1h"})
        assert gone(own) == 4


class TestWindows:
    def test_moves_start_only_inside(self):
        cluster = empty_nodes(1, annotations={"karpool.dev/maintenance-windows": "0 22 * * * 2h"})
        for at, moves in (("21:59", 0), ("22:00", 1), ("23:59", 1), ("00:00", 0)):
            assert gone(cluster, now=parse_rfc3339(f"2030-06-15T{at}:00Z")) == moves

    def test_a_window_for_all_closes_everything_else(self):
        cluster = empty_nodes(1)
        settings = PlanSettings(windows=parse_windows("0 22 * * * 2h; 0 3 * * sat 1h"))
        now = parse_rfc3339("2030-06-15T12:00:00Z")
        plan = plan_consolidation(cluster.view(), settings, now)
        assert [each.why[0].reason for each in plan.rejected] == ["window"]

    def test_its_time_zone_has_summer_time(self):
        window = parse_window("0 9 * * * 1h Europe/Paris")
        assert window.is_open(parse_rfc3339("2030-01-15T08:30:00Z"))
        assert not window.is_open(parse_rfc3339("2030-07-15T08:30:00Z"))
        assert window.is_open(parse_rfc3339("2030-07-15T07:30:00Z"))

    @pytest.mark.parametrize(
        "text", ["", "0 9 * *", "0 9 * * * x", "0 9 * * * 1h Mars/Olympus", "0 9 * * * 1h a b"]
    )
    def test_what_is_none_is_refused(self, text):
        with pytest.raises(Invalid):
            parse_window(text)


class TestStopSwitch:
    def test_one_key_stops_everything_and_the_plan_still_shows_what_would_be_done(self):
        cluster = empty_nodes(3, pools=("a", "b"))
        cluster.stop()
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert not plan.moves
        assert plan.stopped is not None
        assert [each.why[0].reason for each in plan.rejected] == ["stopped"] * 6
        cluster.stop("false")
        assert gone(cluster) == 6

    def test_a_pool_has_a_switch_of_its_own(self):
        cluster = empty_nodes(2, pools=("a",))
        cluster.pool("b", annotations={"karpool.dev/consolidation-stop": "true"})
        cluster.node("b-0", pool="b")
        assert gone(cluster) == 2


def test_kinds_of_moves_can_be_switched_off_for_a_pool_and_for_all():
    cluster = BuiltCluster()
    cluster.pool(annotations={"karpool.dev/consolidation-moves": "delete"})
    cluster.node("large", "large")
    cluster.pod("web", "large")
    assert gone(cluster) == 0
    cluster.pool()
    assert gone(cluster) == 1
    assert gone(cluster, PlanSettings(replace=False)) == 0
