"""From objects to answers: sums, what could be launched, timelines, the board, and limits on all of it."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replaced

from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.market import Market
from karpool.consolidation.planning.plan import RejectedMove
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ASPECTS, ClusterView, view_of
from karpool.dashboard.pages import consolidation_board as boards
from karpool.dashboard.pages import recent_events as happened
from karpool.dashboard.pages import scale_up_timelines
from karpool.dashboard.pages.consolidation_board import board, in_order, move_detail
from karpool.dashboard.pages.fleet_map import ClusterOverview, PromisedCapacity, fleet, nodes
from karpool.dashboard.pages.node_detail import node_detail
from karpool.dashboard.pages.placements import placements, steps
from karpool.dashboard.pages.promises import by_cluster, promises
from karpool.dashboard.pages.recent_events import EventBuffer, recent_events
from karpool.dashboard.pages.scale_up_timelines import STEPS, ScaleUpTraces, timeline
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_record import STAGES, ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.catalogue.files import load_shipped
from karpool.model.infeasible import Infeasible
from karpool.model.karmada.member_cluster import read_cluster
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.meta import ObjectMeta
from karpool.scheduler.cycle.binding_store import read
from karpool.scheduler.promises.ledger import PromiseLedger
from tests.consolidation import cluster_objects
from tests.dashboard.fleets import BALANCED, nodes_and_pods, placed

NOW = 1_790_000_000.0


@cache
def catalogue() -> Catalogue:
    """Read once for all examples; what nodes teach it is the same for all of them."""
    return load_shipped("us-east-1")


def seen(objects) -> ClusterView:
    cluster = Cluster(ASPECTS, market=Market(catalogue()))
    assert cluster.load(objects, NOW) == []
    return view_of(cluster.snapshot(NOW), NOW)


def one_pool(count=2, *, limits=None, **change):
    pool = cluster_objects.pool(annotations=BALANCED, **change)
    if limits is not None:
        pool["spec"]["limits"] = limits
    yield pool
    for number in range(count):
        yield from cluster_objects.node(f"n{number}")


# Fleet


def test_what_people_call_devices_has_a_bar_and_plumbing_has_none() -> None:
    plumbing = ("vpc.amazonaws.com/pod-eni", "vpc.amazonaws.com/PrivateIPv4Address", "hugepages-2Mi")
    devices = ("nvidia.com/gpu", "vpc.amazonaws.com/efa", "example.com/fpga")
    node, claim = cluster_objects.node("n0")
    for name in (*plumbing, *devices, "attachable-volumes-aws-ebs"):
        node["status"]["capacity"][name] = node["status"]["allocatable"][name] = "8"
    view = seen([*one_pool(0), node, claim])
    (row,) = fleet([ClusterOverview("east", view)], {}, {}, NOW).clusters
    (shown,) = nodes("east", view, NOW).items

    assert set(row.amounts) == set(shown.allocatable) == {"cpu", "memory", *devices}


@settings(max_examples=25)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 5))
def test_the_fleet_is_the_sum_of_clusters_and_a_cluster_that_of_its_pools(counts, seed) -> None:
    facts = [
        ClusterOverview(f"c{number}", seen(nodes_and_pods(count, seed=seed + number)))
        for number, count in enumerate(counts)
    ]
    found = fleet(facts, {}, {}, NOW)

    assert found.nodes == sum(counts) == sum(row.nodes for row in found.clusters)
    for whole, parts in [(found, found.clusters), *((row, row.pools) for row in found.clusters)]:
        assert whole.nodes == sum(part.nodes for part in parts)
        assert whole.price_per_hour == pytest.approx(sum(part.price_per_hour for part in parts))
        for name, amount in whole.amounts.items():
            assert amount.allocatable == sum(part.amounts[name].allocatable for part in parts)
            assert amount.requested == sum(part.amounts[name].requested for part in parts)
    for fact in facts:
        listed = nodes(fact.name, fact.view, NOW).items
        row = next(row for row in found.clusters if row.name == fact.name)
        assert sum(node.requested["cpu"] for node in listed) == row.amounts["cpu"].requested
        assert sum(node.price_per_hour for node in listed) == pytest.approx(row.price_per_hour)


@pytest.mark.parametrize(
    ("limits", "failure", "potential", "says"),
    [
        pytest.param(None, "", None, "no spec.limits", id="nothing limits it"),
        pytest.param({"cpu": "10"}, "", 6000, "4 of 10 used", id="what the limit leaves"),
        pytest.param({"cpu": "4"}, "", 0, "limit reached: cpu", id="the limit is reached"),
        pytest.param({"memory": "16Gi"}, "", 0, "limit reached: memory", id="another limit closes it too"),
        pytest.param({"cpu": "10"}, "out of stock", 0, "does not count", id="it does not deliver"),
    ],
)
def test_what_a_pool_could_still_launch(limits, failure, potential, says) -> None:
    failures = {"general": failure} if failure else {}
    facts = ClusterOverview("east", seen(one_pool(limits=limits)), failures=failures)
    (pool,) = fleet([facts], {}, {}, NOW).clusters[0].pools

    assert pool.amounts["cpu"].potential == potential
    assert any(says in line for line in pool.why), pool.why


def test_promises_show_in_the_bar_of_their_cluster() -> None:
    facts = ClusterOverview("east", seen(one_pool()))
    row = fleet([facts], {}, {"east": PromisedCapacity(3, {"cpu": 1500})}, NOW).clusters[0]

    assert row.promised_replicas == 3
    assert row.amounts["cpu"].promised == 1500
    assert any("3 replicas placed here" in line for line in row.why)


def test_a_cluster_that_only_karmada_knows_is_shown_by_its_summary() -> None:
    raw = {
        "metadata": {"name": "far"},
        "spec": {"region": "mars", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        "status": {"resourceSummary": {"allocatable": {"cpu": "9"}, "allocated": {"cpu": "2"}}},
    }
    (row,) = fleet([], {"far": read_cluster(raw)}, {}, NOW).clusters

    assert (row.watched, row.region) == (False, "mars")
    assert (row.amounts["cpu"].allocatable, row.amounts["cpu"].requested) == (9000, 2000)
    assert any("taint k=v:NoSchedule" in line for line in row.why)


# Consolidation


@pytest.mark.long
@settings(max_examples=12)
@given(st.integers(0, 10_000))
def test_every_node_is_on_the_board_and_points_lie_on_the_right_side_of_the_line(seed) -> None:
    view = seen(nodes_and_pods(12, seed=seed))
    plan = plan_consolidation(view, now=NOW)
    found = board("east", plan)
    names = {name for each in found.points for name in each.nodes} | {each.node for each in found.held}

    assert names >= set(view.snapshot.names)
    for point in found.points:
        if point.threshold is not None and point.savings_fraction is not None:
            above = point.savings_fraction >= point.disruption_fraction * point.threshold - 1e-9
            assert above or not point.approved
        assert point.why
        detail = move_detail("east", plan, point.id)
        assert detail is not None and detail.move == point
        assert all(fate.to for fate in detail.pods)
    for name in view.snapshot.names:
        detail = node_detail("east", view, name, plan)
        assert detail is not None and detail.why
        assert detail.verdict in ("goes", "could go", "stays")


def test_many_approved_moves_leave_room_for_refused_ones(monkeypatch) -> None:
    plan = plan_consolidation(seen(nodes_and_pods(20, seed=3)), now=NOW)
    assert len(plan.moves) > 4
    both = replace(plan, rejected=tuple(refused_for_their_budget(plan)))
    monkeypatch.setattr(boards, "POINTS_MAX", 4)
    found = board("east", both)

    assert [point.approved for point in found.points] == [True, True, False, False]
    assert found.points_left_out == len(both.moves) + len(both.rejected) - 4
    assert (found.approved, found.refused) == (len(both.moves), len(both.rejected))


def refused_for_their_budget(plan):
    return [
        RejectedMove(move, (Infeasible(ConsolidationReason.BUDGET, "the budget allows none"),))
        for move in plan.moves[:3]
    ]


def test_clusters_with_something_to_see_come_first_and_a_pool_without_moves_still_has_its_line() -> None:
    empty = board("a", plan_consolidation(seen(one_pool(0)), PlanSettings(), NOW))
    busy, idle, judged = (replaced(empty, cluster=name) for name in "bcd")
    busy, judged = replaced(busy, approved=1), replaced(judged, refused=2)

    assert [each.cluster for each in in_order([empty, judged, idle, busy])] == ["b", "d", "a", "c"]
    assert [(pool.policy, pool.k) for pool in empty.pools] == [("Balanced (k=2)", 2)]


def test_without_a_plan_a_node_says_that_it_is_not_known_yet() -> None:
    view = seen(one_pool())

    assert node_detail("east", view, "n0", None).verdict == "not known yet"
    assert node_detail("east", view, "nobody", None) is None


# Scale-ups


def unit(stage, **more) -> ScaleUpUnit:
    return ScaleUpUnit(0, 1, 1000, 2**30, "candidate", stage, NOW - 10, NOW - 100, **more)


def record(*units) -> ScaleUpRecord:
    return ScaleUpRecord(
        DemandKey("p", "L4", 1, 8, 30), ScaleUpState.PENDING, NOW - 200, NOW - 10, units=units
    )


def test_a_timeline_moves_forward_with_the_stage() -> None:
    reached = []
    for stage in STAGES:
        states = [step.state for step in timeline(record(), unit(stage), ScaleUpTraces()).steps]
        done = states.count("done")
        assert states == ["done"] * done + ["now"] * (done < len(STEPS)) + ["waiting"] * (
            len(STEPS) - done - 1
        )
        reached.append(done)

    assert reached == sorted(reached)
    assert (reached[0], reached[-1]) == (1, len(STEPS))


def test_an_attempt_that_failed_says_where() -> None:
    found = timeline(record(), unit(ScaleUpState.LAUNCHING, ended=LaunchReason.STOCK_OUT), ScaleUpTraces())

    assert [step.name for step in found.steps if step.state == "failed"] == ["Machine"]
    assert found.ended == "InsufficientCapacity"


def test_units_that_are_under_way_come_first_and_the_list_is_bounded() -> None:
    ended = [
        replace(unit(ScaleUpState.PENDING, ended="Surplus"), index=index)
        for index in range(scale_up_timelines.UNITS_MAX)
    ]
    going = replace(unit(ScaleUpState.PENDING), index=99)
    found = scale_up_timelines.scale_up("gpu", record(*ended, going), ScaleUpTraces())

    assert found.units[0].index == 99
    assert (len(found.units), found.units_left_out) == (scale_up_timelines.UNITS_MAX, 1)


def test_a_record_that_is_gone_is_remembered_as_far_as_it_got() -> None:
    served, given_up = unit(ScaleUpState.RETRYING), replace(unit(ScaleUpState.PENDING), index=1)
    found = scale_up_timelines.scale_up("gpu", record(served, given_up), ScaleUpTraces(), ended_at=NOW - 3)
    by_index = {each.index: each for each in found.units}

    assert (found.state, found.over, found.ended_at) == ("Ended", True, NOW - 3)
    assert {step.state for step in by_index[0].steps} == {"done"}
    assert by_index[0].steps[-1].at == NOW - 3
    assert by_index[1].ended == "Removed"


# Placements and promises


def test_placements_say_who_is_on_the_way_and_promises_hold_what_they_ask_for() -> None:
    raw = placed("web", 10, {"east": 6, "west": 4}, NOW, in_flight={"east": 2})
    raw["metadata"]["uid"] = "u"
    known, ledger = read(raw), PromiseLedger()
    ledger.observe(known.binding, 1000.0, NOW)
    (item,) = placements([known], ledger, NOW).items
    (row,) = promises([ledger], 1000.0, NOW).items

    assert item.state == "placed"
    assert [(share.cluster, share.replicas, share.promised) for share in item.shares] == [
        ("east", 6, 2),
        ("west", 4, 0),
    ]
    assert (row.cluster, row.replicas, row.desired) == ("east", 2, 6)
    assert row.requests["cpu"] == 2000
    assert row.age_seconds + row.expires_in_seconds == pytest.approx(300)
    assert by_cluster([ledger])["east"] == PromisedCapacity(2, row.requests)


def test_a_binding_that_cannot_be_read_is_listed_first_with_its_reason() -> None:
    odd = placed("odd", 2, {}, NOW)
    odd["spec"]["placement"] = {"clusterTolerations": [{"key": "a", "operator": "Lt", "value": "1"}]}
    found = placements([read(placed("web", 1, {"east": 1}, NOW)), read(odd)], None, NOW).items

    assert [each.state for each in found] == ["unreadable", "placed"]
    assert "clusterTolerations" in found[0].message


def test_an_explanation_is_cut_into_its_steps() -> None:
    text = (
        "ResourceBinding a\n\nfilter: 1 of 2\n  b: no (P)\nselect: a\ndivide: X\n  gives a 1\nSuccess: done"
    )
    found = steps(text)

    assert [step.title for step in found] == ["filter", "select", "divide"]
    assert found[0].lines == ["1 of 2", "  b: no (P)"]
    assert found[-1].lines[-1] == "Success: done"


# Events


def test_only_the_newest_events_are_held_and_shown(monkeypatch) -> None:
    held = EventBuffer(limit=10)
    for number in range(100):
        moment = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
        made = KubeEvent(metadata=ObjectMeta(name=f"e{number}"), reason=str(number), last_timestamp=moment)
        held.apply([ObjectChange("ADDED", ObjectKey("d", f"e{number}"), made)])
    monkeypatch.setattr(happened, "SHOWN_MAX", 5)
    found = recent_events([("east", held)], NOW)

    assert [each.reason for each in found.items] == ["99", "98", "97", "96", "95"]
    assert 5 <= found.left_out <= 15


@pytest.mark.long
@given(st.lists(st.text(max_size=30), max_size=4))
def test_times_that_are_none_do_not_stop_the_list(texts) -> None:
    events = [KubeEvent(last_timestamp=text, message=text * 200) for text in texts]

    found = recent_events([("east", events)], NOW).items
    assert len(found) == len(texts)
    assert all(len(each.message) <= 1024 for each in found)
