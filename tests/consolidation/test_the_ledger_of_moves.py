"""What moves saved and whom they disturbed; how it is shown, told and counted."""

import asyncio
import json
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from karpool.cli.inspect.get_moves import moves_listing
from karpool.cli.output.listing import ListingForm, render_listing
from karpool.cluster.market.market import Market
from karpool.consolidation.execution.controller import Consolidator
from karpool.consolidation.execution.metrics import ConsolidationMetrics
from karpool.consolidation.execution.move_history import (
    PodOwners,
    cost_of,
    disturbances,
    leftovers,
    measure,
    redisturbed,
    resting,
    resting_owners,
    saved_by,
    saved_by_all,
    to_forget,
)
from karpool.consolidation.execution.plan_application import apply
from karpool.consolidation.execution.record import (
    MovePhase,
    MoveRecord,
    PlanBound,
    bound_of,
    from_object,
    to_object,
)
from karpool.consolidation.execution.reporting import MoveReporter
from karpool.consolidation.planning.plan import MoveKind, PlanCertificate
from karpool.dashboard.pages.move_ledger import _why
from karpool.kube.clock import RealClock
from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import CONFIGMAPS, PODS
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import decode
from tests.consolidation.built import BuiltCluster
from tests.consolidation.executing import NAMESPACE, QUICK, Play, play
from tests.consolidation.plans import move, new_node, source
from tests.consolidation.plans import plan as a_plan
from tests.consolidation.test_steps_of_a_move import record_of
from tests.fleet.karpenter.acting import catalogue


def done(at: float, **changes):
    given = {"phase": MovePhase.DONE, "deleted_at": at, "ended": at + 60, "realised": 1.0, "disturbed": 2}
    return record_of(1, 0, created=at, since=at, **{**given, **changes})


def test_pods_are_redisturbed_when_their_controller_lost_pods_within_ten_minutes() -> None:
    earlier = [done(0.0, owners={"web": 9}), done(500.0, owners={"web": 2, "db": 1})]
    assert redisturbed({"web": 3}, earlier, 599.0) == 3
    assert redisturbed({"web": 3}, earlier, 600.0) == 2, "the first is ten minutes ago"
    assert redisturbed({"db": 1, "api": 5}, earlier, 600.0) == 1
    assert redisturbed({"web": 3}, earlier, 1100.0) == 0


def test_nodes_of_moves_that_failed_rest_longer_each_time() -> None:
    failed = record_of(1, 0, phase=MovePhase.ROLLED_BACK, ended=100.0)
    assert resting([failed], 100.0)["node-0"].until == 160.0
    assert resting([failed], 160.0) == {}
    assert resting([replace(failed, attempt=3)], 100.0)["node-0"].until == 340.0
    assert resting([replace(failed, arrived=("new",))], 100.0)["node-0"].until == 700.0
    assert resting([replace(failed, attempt=99)], 100.0)["node-0"].until == 3700.0
    assert resting([done(100.0)], 101.0) == {}


def test_pods_that_did_not_land_as_planned_are_left_alone_longer_each_time() -> None:
    """Whatever nodes they are on by then: the move would be planned again, and end the same way."""
    landed = done(0.0, owners={"web": 3})
    assert resting_owners([landed], 61.0) == {}
    failed = done(0.0, owners={"web": 3, "api": 1}, extra_nodes=("bought",))
    assert {owner: rest.until for owner, rest in resting_owners([failed], 61.0).items()} == {
        "web": 660.0,
        "api": 660.0,
    }
    assert resting_owners([failed], 660.0) == {}
    again = done(1000.0, owners={"web": 2}, extra_nodes=("another",))
    assert {owner: rest.until for owner, rest in resting_owners([again, failed], 1060.0).items()} == {
        "web": 1060.0 + 1200.0
    }
    often = [done(1000.0 * n, owners={"web": 1}, extra_nodes=("x",)) for n in range(12)]
    assert resting_owners(often, 11_060.0)["web"].until == 11_060.0 + 6 * 3600.0


def test_a_claim_that_came_for_a_placeholder_which_found_room_elsewhere_is_a_cost_and_no_saving() -> None:
    asked = {"asked_at": 0.0, "arrived": ("old",), "arrived_price": 0.0, "gone_at": 300.0}
    found = record_of(1, 1, phase=MovePhase.DONE, ended=360.0, realised=1.0, unused=("came",), **asked)
    price = found.move.new_nodes[0].price_per_hour
    assert cost_of(found, (found,), 9999.0) == pytest.approx(price * 360.0 / 3600.0)
    swept = record_of(1, 0, phase=MovePhase.DONE, created=400.0, gone_at=720.0)
    source_node = replace(swept.move.nodes[0], name="new", claim="came", price_per_hour=0.5)
    swept = replace(swept, move=replace(swept.move, id="swept", nodes=(source_node,)))
    assert cost_of(found, (found, swept), 9999.0) == pytest.approx(0.5 * 720.0 / 3600.0)
    assert leftovers((found, swept)) == {"came"}
    measured = measure(swept, (found, swept), BuiltCluster().view(), PodOwners())
    assert measured.realised == 0.0, "without us it would not have been there"
    assert measure(swept, (swept,), BuiltCluster().view(), PodOwners()).realised == 0.5


def test_only_nodes_that_went_count_for_limits_per_time() -> None:
    records = [
        done(5.0),
        record_of(2, 0),
        record_of(2, 0, phase=MovePhase.DONE, deleted_at=9.0, kept=("node-1",)),
    ]
    assert [(disturbance.node, disturbance.at) for disturbance in disturbances(records)] == [
        ("node-0", 5.0),
        ("node-0", 9.0),
    ]


def test_old_records_are_forgotten_and_those_under_way_are_not() -> None:
    month = 30 * 86400.0
    records = [done(0.0), done(month), record_of(phase=MovePhase.ASKING)]
    assert to_forget(records, month + 61.0) == [records[0]]
    assert to_forget(records, month + 59.0, keep=1) == [records[0]]
    assert to_forget(records, 59.0, keep=0) == [records[1], records[0]]
    day = 86_400.0
    assert to_forget(records, 3 * day + 61.0, keep_seconds=3 * day) == [records[0]]
    assert to_forget(records, day - 1.0, keep_seconds=0.0) == [], "limits per time are counted by them"


def render(records, now: float, output: str) -> str:
    return render_listing(moves_listing(records, now), ListingForm(output))


def test_moves_are_shown_as_a_table_and_for_machines() -> None:
    records = [done(0.0), record_of(5, 1, phase=MovePhase.ASKING, created=50.0)]
    text = render(records, 100.0, "wide")
    assert "Done" in text and "Asking" in text and "1m40s" in text
    assert "1 move done: $1.0000 of $1.0000 per hour realised" in text
    assert render([], 0.0, "table") == "no moves"
    (first, second) = json.loads(render(records, 100.0, "json"))["items"]
    assert (first["realisedSavingsPerHour"], first["podsDisturbed"]) == (1.0, 2)
    assert second["realisedSavingsPerHour"] is None and len(second["nodes"]) == 5


def test_what_the_certificate_said_is_kept_with_a_move_and_shown() -> None:
    bound = PlanBound(3.0, 4.0, 40.0)
    stored = decode(to_object(done(0.0, bound=bound), NAMESPACE), ConfigMap)
    record = from_object(stored)
    assert record.bound == bound
    assert "75%" in render([record], 100.0, "wide")
    late = replace(record, created=40.0 + 5 * 3600)
    assert "75% (5h before)" in render([late], late.created, "wide")
    (shown,) = json.loads(render([record], 100.0, "json"))["items"]
    assert shown["planCertificate"] == {
        "plannedSavingsPerHour": 3.0,
        "possibleSavingsPerHour": 4.0,
        "at": "1970-01-01T00:00:40Z",
    }
    (line,) = (line for line in _why(record) if "plan could" in line)
    assert "$3.0000" in line and "$4.0000" in line


def test_a_plan_without_a_certificate_bounds_nothing() -> None:
    plan = a_plan()
    assert bound_of(plan) is None
    assert bound_of(replace(plan, certificate=PlanCertificate(None, "no solver"))) is None
    assert bound_of(replace(plan, certificate=PlanCertificate(0.0))).share is None


def test_outcomes_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = ConsolidationMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    record = done(0.0)
    metrics.approved(record.move)
    metrics.moved(None, replace(record, phase=MovePhase.DELETING, disturbed=4, redisturbed=1))
    metrics.moved(None, record)
    metrics.moved(None, replace(record, realised=-0.5))
    metrics.moved(None, replace(record, realised=None))
    metrics.moved(None, record.to(MovePhase.ROLLED_BACK, 1.0, "stock_out"))
    metrics.moved(None, record.to(MovePhase.REJECTED, 1.0, "budget"))
    metrics.in_flight([record_of(phase=MovePhase.ASKING)], stopped=True)
    prefix = "karpool_consolidation"
    assert value(f"{prefix}_predicted_savings_dollars_per_hour_total") == pytest.approx(3.0)
    assert value(f"{prefix}_realised_savings_dollars_per_hour_total") == 1.0
    assert value(f"{prefix}_realised_losses_dollars_per_hour_total") == 0.5
    assert value(f"{prefix}_unmeasured_moves_total") == 1
    assert value(f"{prefix}_pods_disturbed_total") == 4 and value(f"{prefix}_pods_redisturbed_total") == 1
    assert value(f"{prefix}_moves_in_flight", phase="Asking") == 1 and value(f"{prefix}_stopped") == 1
    words = {"decision": "delete", "reason": "underutilized", "consolidation_type": "single"}
    assert value("karpenter_voluntary_disruption_decisions_total", **words) == 1
    assert value("karpenter_voluntary_disruption_queue_failures_total", **words) == 1
    labels = {"consolidation_type": "single", "reason": "budget"}
    assert value("karpenter_voluntary_disruption_failed_validations_total", **labels) == 1
    scored = {"decision": "approved", "nodepool": "general", "policy": "Balanced"}
    assert value("karpenter_consolidation_score_count", **scored) == 1
    assert value("karpenter_consolidation_moves_total", **scored) == 1


def test_what_was_saved_is_the_bill_without_us_less_the_bill_with_us() -> None:
    """Second by second, over nodes that are there in the one life and in the other."""
    now = 7200
    nodes = {"a": 1.0, "b": 0.8, "new": 0.4, "newer": 0.1, "waste": 0.5}
    without = {"a": (0, now), "b": (0, now)}
    # a is replaced by `new`, and that by `newer`; for b a node is bought, in vain, and taken away later.
    with_us = {
        "a": (0, 600),
        "new": (300, 2000),
        "newer": (1800, now),
        "b": (0, now),
        "waste": (900, 3000),
    }

    def bill(lives: dict[str, tuple[int, int]]) -> float:
        return sum(nodes[name] * (end - start) for name, (start, end) in lives.items()) / 3600

    def made(name: str, came: str, asked: float, gone: float, **changes: object) -> MoveRecord:
        moved = move(source(name, nodes[name]), new_nodes=[new_node(nodes[came])], kind=MoveKind.REPLACE)
        realised = nodes[name] - nodes[came]
        state = {"phase": MovePhase.DONE, "asked_at": asked, "gone_at": gone, "realised": realised}
        ends = {"arrived": (came,), "arrived_price": nodes[came], "ended": gone + 60}
        return MoveRecord(moved, **{"created": asked, "since": gone, **state, **ends, **changes})

    vain = {"phase": MovePhase.ROLLED_BACK, "gone_at": None, "realised": None, "ended": 1000.0}
    leftover = replace(made("waste", "new", 2900.0, 3000.0), arrived=(), arrived_price=None, realised=0.0)
    records = [
        made("a", "new", 300.0, 600.0),
        made("new", "newer", 1800.0, 2000.0),
        made("b", "waste", 900.0, 1000.0, **vain),
        leftover,
    ]
    assert saved_by_all(records, now) == pytest.approx(bill(without) - bill(with_us))
    assert saved_by(records[3], records, now) == 0.0, "removing our own leftovers saves nothing"
    assert saved_by(records[2], records, now) == pytest.approx(-0.5 * 2100 / 3600)
    assert saved_by(replace(records[0], realised=None), records, now) is None
    text = render(records, now, "table")
    assert f"up to now the bill is ${saved_by_all(records, now):.4f} lower" in text
    shown = json.loads(render(records, now, "json"))
    assert shown["savedDollars"] == pytest.approx(saved_by_all(records, now))
    registry = CollectorRegistry()
    ConsolidationMetrics(registry).saved(records, now)
    assert registry.get_sample_value("karpool_consolidation_saved_dollars") == shown["savedDollars"]


async def told(p: Play, reason: str) -> list[tuple[str, str]]:
    return sorted(
        (event["involvedObject"]["kind"], event["message"]) for event in await p.stage.events(reason)
    )


def test_a_move_of_one_node_is_told_on_node_and_claim_with_its_numbers() -> None:
    async def story(p: Play) -> None:
        await p.too_large(consolidationPolicy="Balanced")
        p.start()
        await p.over()
        await asyncio.sleep(1)
        approved = await told(p, "ConsolidationApproved")
        assert [kind for kind, _ in approved] == ["Node", "NodeClaim"]
        assert approved[0][1] == ("score 0.75 >= threshold 0.50 (k: 2, savings 75.0%, disruption 100.0%)")
        assert [kind for kind, _ in await told(p, "ConsolidationCandidate")] == ["Node", "NodeClaim"]
        assert [kind for kind, _ in await told(p, "DisruptionTerminating")] == ["Node", "NodeClaim"]
        ((kind, text),) = await told(p, "ConsolidationDone")
        assert kind == "NodePool" and "saves $0.3000 per hour, $0.3000 were expected" in text

    play(story)


def test_a_rejected_move_is_told_once_however_often_it_is_planned() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(2, budgets=[{"nodes": "0"}])
        p.start()
        await asyncio.sleep(300)
        rejected = await p.stage.events("ConsolidationRejected")
        assert rejected and all(each["count"] == 1 for each in rejected)
        assert len({(each["involvedObject"]["name"], each["message"]) for each in rejected}) == len(rejected)
        assert all("budget 0 of nodepool general" in each["message"] for each in rejected)
        assert await p.records() == []

    play(story)


@pytest.mark.long
def test_a_node_that_had_to_be_bought_after_all_is_taken_off_the_saving() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(2)
        await p.stage.budget("web", maxUnavailable=1)
        await asyncio.sleep(5)
        p.start()
        await p.reached(MovePhase.DELETING)
        # Somebody takes the room that the pods were promised.
        await p.deploy("greedy", 1, cpu="700m", nodeSelector={"karpenter.sh/nodepool": "general"})
        (record,) = await p.over()
        assert record.phase is MovePhase.DONE and len(record.extra_nodes) == 1
        assert record.realised == pytest.approx(record.move.savings_per_hour - 0.10)

    play(story)


def test_an_applied_plan_is_carried_out_by_whoever_leads() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        client = p.stage.cluster.client("user")
        looker = Manager.of(
            client, lambda env: Consolidator(env, QUICK, market=Market(catalogue()), show=lambda plan: None)
        )
        stop = Stop()
        looking = asyncio.ensure_future(looker.run(stop))
        await asyncio.sleep(5)
        stop.set()
        await looking
        found = looker.runnable
        assert found.plan is not None and found._last_view is not None
        phases: list[MovePhase] = []
        records = await apply(
            client,
            found.plan.moves,
            found._last_view,
            QUICK,
            market=Market(catalogue()),
            told=lambda record: phases.append(record.phase),
        )
        assert [record.phase for record in records] == [MovePhase.DONE]
        assert phases[0] is MovePhase.WAITING and phases[-1] is MovePhase.DONE
        assert await p.types() == ["small"] and await p.leaks() == []

    play(story)


def test_a_record_that_cannot_be_read_is_listed_and_stops_nobody() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(2)
        await p.switch(stop=False)
        labels = {"consolidation.karpool.dev/record": "move", "consolidation.karpool.dev/active": "true"}
        meta = {"name": "karpool-move-odd", "namespace": NAMESPACE, "labels": labels}
        await p.stage.admin.create(CONFIGMAPS, {"metadata": meta, "data": {"record": "{"}})
        p.start()

        async def one_is_left() -> bool:
            return len(await p.stage.nodes()) == 1

        await p.until(one_is_left)
        plan = p.made[0].plan
        assert plan is not None and any("karpool-move-odd" in problem for problem in plan.problems)

    play(story)


def test_pods_with_a_budget_are_not_ended_by_a_grace_period() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(2, template={"terminationGracePeriod": "30s"})
        await p.stage.budget("web", maxUnavailable=1)
        await asyncio.sleep(5)
        p.start()
        await asyncio.sleep(120)
        assert {record.reason for record in await p.records()} <= {"pdb_deadline", ""}
        assert "pdb_deadline" in [record.reason for record in await p.records()]
        assert p.budgets.deletions == 0

    play(story)


def test_why_a_move_is_not_made_is_told_once_while_only_its_numbers_change() -> None:
    said: list[tuple[str, str]] = []

    class Recorder:
        def record(self, about, type_, reason, message):
            said.append((about, message))

    reporter = MoveReporter(Recorder(), RealClock())  # type: ignore[arg-type]
    texts = [
        "delete: [ip-10-0-1-7], reason: budget (savings: $0.27): budget 10% allows 1 of 9 nodes",
        "delete: [ip-10-0-1-7], reason: budget (savings: $0.31): budget 10% allows 0 of 8 nodes",
        "delete: [ip-10-0-1-8], reason: budget (savings: $0.31): budget 10% allows 0 of 8 nodes",
        "delete: [ip-10-0-1-7], reason: churn (savings: $0.31): a pod came",
    ]
    for text in texts:
        reporter._say("node", "Normal", "ConsolidationRejected", text)  # type: ignore[arg-type]
    assert [text for _, text in said] == [texts[0], texts[2], texts[3]]
    for text in texts[:2]:
        reporter._say("node", "Normal", "ConsolidationApproved", text)  # type: ignore[arg-type]
    assert len(said) == 5, "what is decided is told with its numbers"


def test_a_move_that_was_rolled_back_shows_what_it_cost_until_its_node_was_gone() -> None:
    asked = {"asked_at": 0.0, "arrived": ("new",), "arrived_price": 0.5}
    back = record_of(1, 1, phase=MovePhase.ROLLED_BACK, created=0.0, ended=360.0, **asked)
    assert cost_of(back, (), 9999.0) == pytest.approx(0.05)
    swept = record_of(1, 0, phase=MovePhase.DONE, created=400.0, gone_at=720.0, realised=0.0)
    swept = replace(
        swept, move=replace(swept.move, id="swept", nodes=(replace(swept.move.nodes[0], name="new"),))
    )
    assert cost_of(back, (back, swept), 9999.0) == pytest.approx(0.1)
    assert leftovers((back, swept)) == {"new"}
    assert "new nodes cost $0.1000 before they saved anything" in render([back, swept], 9999.0, "table")
    (first, _) = json.loads(render([back, swept], 9999.0, "json"))["items"]
    assert first["costDollars"] == pytest.approx(0.1)
    unpriced = replace(back, arrived_price=None)
    assert cost_of(unpriced, (), 9999.0) is None
    assert cost_of(done(5.0), (), 10.0) == 0.0


def test_the_bill_while_old_and_new_nodes_run_is_a_cost_and_leftovers_save_nothing() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        (record,) = await p.over()
        cost = cost_of(record, (record,), 0.0)
        assert cost == pytest.approx(0.10 * (record.gone_at - record.asked_at) / 3600)
        assert cost > 0

    play(story)


def test_taking_away_what_a_move_left_behind_saves_nothing() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        await p.reached(MovePhase.ASKING)
        # Its pod asks not to be disturbed once the new node has come: the move is rolled back.
        (pod,) = [pod for pod in await p.stage.running() if pod.metadata.namespace == "default"]
        wish = {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
        await p.stage.admin.patch(PODS, pod.name, wish, namespace="default")
        await p.until(lambda: left_alone(p))
        records = await p.records()
        back = next(each for each in records if each.phase is MovePhase.ROLLED_BACK)
        assert cost_of(back, records, 0.0) > 0
        swept = [
            each for each in records if each.phase is MovePhase.DONE and set(back.arrived) & set(each.nodes)
        ]
        assert [each.realised for each in swept] == [0.0]

    async def left_alone(p: Play) -> bool:
        records = await p.records()
        return all(record.phase.is_over for record in records) and await p.types() == ["large"]

    play(story)
