"""The numbers of the published verification and of the ranking experiment come out of our own code."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from karpool.cli.inspect.verify_policy import verify_policy
from karpool.consolidation.policy.scoring import PoolTotals, score_move
from karpool.consolidation.verification import properties, ranking_experiment

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def verified():
    return properties.verify()


@pytest.fixture(scope="module")
def experiment():
    return ranking_experiment.run()


def test_all_eight_properties_hold(verified):
    assert [(each.name, each.holds) for each in verified.properties] == [
        (f"P{number}", True) for number in range(1, 9)
    ]
    assert all(each.checked for each in verified.properties)


def test_the_table_that_chooses_k(verified):
    assert [
        (row.k, row.approved_pairs, row.configurations, len(row.new_pairs), row.chain_length)
        for row in verified.thresholds
    ] == [
        (1, 0, 0, 0, 0),
        (2, 78, 2340, 78, 4),
        (3, 86, 2580, 8, 4),
        (4, 95, 2850, 9, 9),
        (5, 100, 3000, 5, 9),
    ]
    assert verified.pairs == 105


def test_the_longest_chains_are_the_published_ones(verified):
    assert verified.thresholds[1].longest_chain == (7140, 3570, 1785, 892, 446)
    assert verified.thresholds[3].longest_chain == (10584, 7140, 5292, 3570, 2646, 1785, 1323, 892, 661, 446)


def test_disruption_decides_in_the_published_example(verified):
    assert "k=1: 2 nodes at 446, pods (2,) rejected, pods (1,) approved" in verified.properties[5].note


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        pytest.param(lambda k, s, d, c, t: s > 0 and s * 2 < c, "P1", id="dear replacements preferred"),
        pytest.param(lambda k, s, d, c, t: d > 3, "P2", id="heavy nodes preferred"),
        pytest.param(lambda k, s, d, c, t: d > 0 and s > 0, "P3", id="empty nodes kept"),
        pytest.param(lambda k, s, d, c, t: True, "P4", id="everything approved"),
        pytest.param(lambda k, s, d, c, t: s > 0 and c < 2000, "P7", id="small pools preferred"),
    ],
)
def test_a_rule_that_breaks_a_promise_is_found_out(monkeypatch, broken, name):
    monkeypatch.setattr(properties, "approves", broken)

    found = properties.verify(thresholds=(2,), prices=properties.PRICES[:6], nodes_max=3)

    broken_ones = {each.name: each.counterexample for each in found.properties if not each.holds}
    assert broken_ones[name]
    assert not found.holds


@given(
    k=st.integers(1, 5),
    savings=st.integers(-10_000, 10_000),
    disruption=st.integers(1, 400),
    cost=st.integers(1, 60_000),
    rest=st.integers(0, 400),
)
def test_the_rule_without_division_is_the_score(k, savings, disruption, cost, rest):
    exact = properties.approves(k, savings, disruption, cost, disruption + rest)

    assert score_move(savings, disruption, PoolTotals(cost, disruption + rest), k).approved == exact


def test_the_experiment_starts_from_the_published_cluster(experiment):
    assert experiment.nodes == 2339
    assert round(experiment.cost_per_hour, 2) == 509.61


def test_the_experiment_finds_the_published_moves(experiment):
    """The script's order of random draws during churn is not published, so not to the last move."""
    found = {kind.name: kind.moves for kind in experiment.kinds}

    assert found == {"REPLACE": pytest.approx(5871, rel=0.002), "DELETE": pytest.approx(23196, rel=0.002)}


PUBLISHED_AREAS = {
    "REPLACE": {"score": 0.808, "savings only": 0.736, "disruption only": 0.676, "random": 0.497},
    "DELETE": {"score": 0.754, "savings only": 0.636, "disruption only": 0.653, "random": 0.503},
}
PUBLISHED_SCORE_CURVE = {
    "REPLACE": (0.329, 0.476, 0.653, 0.762, 0.892),
    "DELETE": (0.245, 0.372, 0.549, 0.668, 0.844),
}


@pytest.mark.parametrize("number", [0, 1])
def test_the_curves_are_the_published_ones(experiment, number):
    kind = experiment.kinds[number]
    areas = {curve.order: curve.area for curve in kind.curves}

    assert areas == pytest.approx(PUBLISHED_AREAS[kind.name], abs=0.01)
    assert kind.curves[0].at == pytest.approx(PUBLISHED_SCORE_CURVE[kind.name], abs=0.01)


@pytest.mark.parametrize("number", [0, 1])
def test_no_order_beats_the_score_at_any_disturbance(experiment, number):
    score, *others = experiment.kinds[number].curves

    for other in others:
        assert all(
            ours[1] >= theirs[1] - 1e-9 for ours, theirs in zip(score.points, other.points, strict=True)
        )


def test_an_experiment_without_moves_is_an_answer_too():
    found = ranking_experiment.run(pods=1, rounds=1)

    assert [kind.moves for kind in found.kinds] == [0, 0]


@pytest.mark.parametrize("form", ["table", "wide", "json", "html"])
def test_the_command_says_it_in_every_form(form, verified, monkeypatch):
    monkeypatch.setattr(properties, "verify", lambda: verified)

    answer = CliRunner().invoke(verify_policy, ["--no-ranking", "-o", form])

    assert answer.exit_code == 0
    assert "2340" in answer.output
    if form == "json":
        document = json.loads(answer.output)
        assert document["kind"] == "PolicyVerification"
        assert [row["approved_pairs"] for row in document["thresholds"]] == [0, 78, 86, 95, 100]
