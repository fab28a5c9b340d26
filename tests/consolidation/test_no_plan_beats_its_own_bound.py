"""The certificate of a plan: a bound that holds, that says what it does not know, and that is missed."""

from dataclasses import replace
from math import isnan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from karpool.consolidation.bound import certificate, linear_program
from karpool.consolidation.bound.certificate import certified
from karpool.consolidation.bound.linear_program import LinearProgram, least_cost
from karpool.consolidation.execution.metrics import ConsolidationMetrics
from karpool.consolidation.planning.plan_file import SavedPlan, parse_plan, to_document
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.model.contracts.contract import (
    AgreementScope,
    Commitment,
    CommitmentKind,
    CommitmentUnit,
    Contract,
)
from tests.consolidation.built import NOW, BuiltCluster, catalogue, instance_type
from tests.consolidation.exact import most_saved
from tests.consolidation.small_clusters import BALANCED, UNSCORED, built, small_cluster
from tests.consolidation.test_plans_hold_together import SETTINGS, random_cluster


def with_certificate(view, chosen=UNSCORED):
    plan = plan_consolidation(view, chosen, NOW)
    return certified(plan, view, chosen, NOW)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(SETTINGS))
def test_no_plan_beats_its_own_bound(seed, chosen):
    plan = with_certificate(random_cluster(seed).view(), chosen)
    assert plan.certificate is not None and plan.certificate.possible_per_hour is not None
    assert plan.savings_per_hour <= plan.certificate.possible_per_hour + 1e-9


@pytest.mark.long
@pytest.mark.parametrize("seed", range(0, 30, 2))
def test_not_even_the_optimum_beats_the_bound(seed):
    nodes, types, kinds = small_cluster(seed)
    plan = with_certificate(built(nodes, types, kinds).view())
    optimum = most_saved(nodes, types, new_nodes=3)
    assert optimum <= plan.certificate.possible_per_hour + 1e-6


@pytest.mark.parametrize("seed", range(1, 21, 2))
def test_the_bound_of_a_scored_plan_is_at_its_own_disruption(seed):
    nodes, types, kinds = small_cluster(seed)
    plan = with_certificate(built(nodes, types, kinds).view(), BALANCED)
    assert plan.certificate.at_disruption == plan.disruption
    optimum = most_saved(nodes, types, new_nodes=3, disruption=plan.disruption)
    assert optimum <= plan.certificate.possible_per_hour + 1e-6


def test_whole_nodes_are_counted_where_there_are_few():
    """One node of which a tenth is used: a tenth of a new one would do, and cannot be bought."""
    cluster = BuiltCluster(catalogue(instance_type("only", 4000, 16, 0.2)))
    cluster.pool()
    cluster.node("n", "only")
    cluster.pod("p", "n", cpu=400)
    plan = with_certificate(cluster.view())
    assert plan.certificate.whole_nodes
    assert plan.certificate.possible_per_hour == pytest.approx(0.0, abs=1e-5)
    assert plan.still_possible == pytest.approx(0.0, abs=1e-4)


def test_what_is_no_candidate_stays():
    cluster = BuiltCluster()
    cluster.pool()
    for number in range(4):
        cluster.node(f"n{number}", "large", annotations={"karpenter.sh/do-not-disrupt": "true"})
        cluster.pod(f"p{number}", f"n{number}", cpu=100)
    plan = with_certificate(cluster.view())
    assert plan.certificate.possible_per_hour == pytest.approx(0.0, abs=1e-5)


def test_budgets_bound_what_is_possible():
    cluster = BuiltCluster()
    cluster.pool(disruption={"budgets": [{"nodes": "1"}]})
    for number in range(4):
        cluster.node(f"n{number}", "large")
        cluster.pod(f"p{number}", f"n{number}", cpu=100)
    assert with_certificate(cluster.view()).certificate.possible_per_hour == pytest.approx(0.4, abs=1e-4)


def spot_cluster() -> BuiltCluster:
    cluster = BuiltCluster(
        catalogue(
            *(
                instance_type(f"t{size}", size, size / 250, size / 20_000, kinds={"spot": 0.5})
                for size in (1000, 4000)
            )
        )
    )
    cluster.pool(requirements=[{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}])
    cluster.node("n", "t4000", capacity_type="spot")
    cluster.pod("p", "n", cpu=500)
    return cluster


def test_spot_is_not_bought_for_spot_where_that_is_switched_off():
    view = spot_cluster().view()
    off, on = (with_certificate(view, replace(UNSCORED, spot_to_spot=value)) for value in (False, True))
    assert off.certificate.possible_per_hour == pytest.approx(0.0, abs=1e-5)
    assert on.certificate.possible_per_hour == pytest.approx(0.075, abs=1e-4)


def test_without_a_solver_the_certificate_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(certificate, "is_installed", lambda: False)
    plan = with_certificate(random_cluster(3).view())
    assert plan.certificate.possible_per_hour is None and "karpool[bound]" in plan.certificate.problem
    assert plan.still_possible is None


def test_after_the_deadline_there_is_no_bound():
    view, late = random_cluster(3).view(), replace(UNSCORED, deadline_seconds=1.0)
    plan = plan_consolidation(view, late, NOW, elapsed=lambda: 2.0)
    found = certified(plan, view, late, NOW, elapsed=lambda: 2.0).certificate
    assert found.possible_per_hour is None and "deadline" in found.problem


def test_a_certificate_survives_the_file_of_a_plan():
    plan = with_certificate(random_cluster(5).view())
    import msgspec

    document = {"kind": "ConsolidationPlan", **to_document(SavedPlan(plan))}
    assert parse_plan(msgspec.json.encode(document)).plan.certificate == plan.certificate


def test_the_bound_says_what_it_leaves_out():
    plan = with_certificate(random_cluster(5).view())
    assert any("topology" in part for part in plan.certificate.leaves_out)


def test_a_program_without_a_solution_has_no_least_cost():
    program = LinearProgram()
    column = program.column(1.0, 1.0)
    program.row((column,), (1.0,), lower=2.0)
    assert least_cost(program) is None
    assert linear_program.is_installed()


# With what was contracted


KIND = CommitmentKind.SAVINGS_PLAN


def contracted(committed: float, seed: int) -> BuiltCluster:
    """Nodes of several sizes with room, under a plan that pays for so many dollars an hour."""
    chance = Random(seed)
    plan = Commitment(
        "plan",
        CommitmentKind.SAVINGS_PLAN,
        AgreementScope(),
        CommitmentUnit.DOLLARS,
        committed,
        0.3,
        committed,
    )
    cluster = BuiltCluster(contract=Contract(commitments=(plan,)))
    cluster.pool()
    for number in range(8):
        cluster.node(f"n{number}", chance.choice(("small", "medium", "large")))
        cluster.pod(f"p{number}", f"n{number}", cpu=chance.choice((200, 500, 900)))
    return cluster


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("committed", [0.05, 0.4, 5.0])
def test_no_plan_under_a_contract_beats_its_bound(committed, seed):
    view = contracted(committed, seed).view()
    plan = with_certificate(view)
    possible = plan.certificate.possible_per_hour
    assert plan.savings_per_hour <= possible + 1e-9
    everything = view.bill.beyond(view.bill.fleet)
    assert possible <= everything + 1e-6, "nobody saves more than is paid"
    assert any("pods" in part for part in plan.certificate.leaves_out)


def test_what_a_contract_pays_for_anyway_cannot_be_saved():
    plan = with_certificate(contracted(50.0, 1).view())
    assert plan.certificate.possible_per_hour == pytest.approx(0.0, abs=1e-4)


def test_the_bound_is_among_the_metrics_of_a_consolidator():
    registry = CollectorRegistry()
    metrics = ConsolidationMetrics(registry)
    name = "karpool_consolidation_possible_savings_dollars_per_hour"
    assert isnan(registry.get_sample_value(name))
    plan = with_certificate(random_cluster(3).view())
    metrics.planned(plan, 0.1)
    assert registry.get_sample_value(name) == plan.certificate.possible_per_hour
    metrics.planned(replace(plan, certificate=None), 0.1)
    assert registry.get_sample_value(name) == plan.certificate.possible_per_hour, "as of the last one"
