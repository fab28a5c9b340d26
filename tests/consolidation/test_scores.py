"""What the Balanced score promises, whatever the numbers."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.consolidation.execution import event_text
from karpool.consolidation.policy.policy import ConsolidationPolicy, PolicyName
from karpool.consolidation.policy.scoring import PoolTotals, ScoredNode, can_pass, score_move, score_sources

BALANCED = ConsolidationPolicy(PolicyName.BALANCED)
ANY = ConsolidationPolicy(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED)

prices = st.floats(0.001, 1000)
costs = st.floats(1, 10_000)
ks = st.integers(1, 3)
totals = st.builds(PoolTotals, cost_per_hour=prices, disruption=costs)
anything = st.floats() | st.sampled_from([0.0, -0.0, 5e-324, 1.7e308, math.inf, -math.inf, math.nan])


@given(savings=prices, more=st.floats(1, 100), disruption=costs, pool=totals, k=ks)
def test_more_savings_never_lower_a_score(savings, more, disruption, pool, k):
    before, after = (score_move(each, disruption, pool, k) for each in (savings, savings * more))

    assert after.score >= before.score
    assert after.approved >= before.approved


@given(savings=prices, more=st.floats(1, 100), disruption=costs, pool=totals, k=ks)
def test_more_disruption_never_raises_a_score(savings, more, disruption, pool, k):
    before, after = (score_move(savings, each, pool, k) for each in (disruption, disruption * more))

    assert after.score <= before.score
    assert after.approved <= before.approved


@given(savings=prices, disruption=costs, pool=totals, k=ks, power=st.integers(-20, 20))
def test_a_score_does_not_depend_on_the_currency(savings, disruption, pool, k, power):
    rate = 2.0**power  # exact in doubles
    other = PoolTotals(pool.cost_per_hour * rate, pool.disruption)

    assert score_move(savings * rate, disruption, other, k) == score_move(savings, disruption, pool, k)


@given(savings=anything, disruption=anything, cost=anything, pain=anything, k=ks)
def test_whatever_the_numbers_no_score_is_nan_and_no_fraction_escapes(savings, disruption, cost, pain, k):
    found = score_move(savings, disruption, PoolTotals(cost, pain), k)

    assert not math.isnan(found.score)
    assert found.score >= 0
    assert not math.isnan(found.savings_fraction)
    assert not math.isnan(found.disruption_fraction)
    assert not (found.approved and not savings > 0)


@given(disruption=costs, pool=totals, k=ks, savings=st.floats(-1000, 0))
def test_nothing_saved_is_never_approved(disruption, pool, k, savings):
    found = score_move(savings, disruption, pool, k)

    assert (found.score, found.approved) == (0.0, False)


@given(price=prices, number=st.integers(1, 40), k=ks)
def test_an_empty_node_passes_in_a_pool_of_equals(price, number, k):
    """It has the least disruption of all, so its share of the cost is at least its share of that."""
    pool = PoolTotals(price * number, number + 7.0)

    assert score_move(price, 1.0, pool, k).approved


@given(price=prices, disruption=costs, k=ks)
def test_to_delete_the_only_node_of_a_pool_scores_exactly_one(price, disruption, k):
    found = score_move(price, disruption, PoolTotals(price, disruption), k)

    assert (found.score, found.approved) == (1.0, True)


@given(cents=st.integers(1, 10_000), nodes=st.integers(1, 200), pods=st.integers(0, 50), k=ks)
def test_rounding_does_not_decide_what_lies_on_the_threshold(cents, nodes, pods, k):
    """A replacement that saves exactly 1/k in a pool of equal nodes, in every currency unit."""
    price, disruption = cents / 100, 1.0 + pods
    pool = PoolTotals(math.fsum([price] * nodes), math.fsum([disruption] * nodes))
    saving = float(Fraction(cents, 100 * k))

    assert score_move(saving, disruption, pool, k).approved
    assert not score_move(saving * (1 - 1e-6), disruption, pool, k).approved


# Moves across pools


def test_every_balanced_pool_must_approve():
    pools = {"a": PoolTotals(48.4, 20), "b": PoolTotals(3.0, 45)}
    move = [ScoredNode("a", 4.84, 2), ScoredNode("b", 1.0, 41)]

    found = score_sources(move, None, {"a": BALANCED, "b": BALANCED}, pools)

    assert not found.approved
    assert [(pool.pool, pool.approved) for pool in found.pools] == [("a", True), ("b", False)]


def test_a_pool_that_does_not_score_cannot_veto():
    pools = {"a": PoolTotals(48.4, 20), "b": PoolTotals(3.0, 45)}
    move = [ScoredNode("a", 4.84, 2), ScoredNode("b", 1.0, 41)]

    found = score_sources(move, None, {"a": BALANCED, "b": ANY}, pools)

    assert found.approved
    assert found.pools[1].score is None


@given(st.lists(st.tuples(st.sampled_from("abc"), prices, costs), min_size=1, max_size=6), st.floats(0, 100))
def test_the_net_saving_is_split_completely(nodes, destination):
    move = [ScoredNode(*node) for node in nodes]
    policies = dict.fromkeys("abc", BALANCED)

    found = score_sources(move, destination, policies, {})

    shares = math.fsum(pool.savings_per_hour for pool in found.pools)
    assert shares == pytest.approx(found.savings_per_hour, rel=1e-9, abs=1e-9)


def test_a_move_without_nodes_is_rejected():
    assert not score_sources([], None, {}, {}).approved


@pytest.mark.parametrize("price", [None, math.nan, math.inf, -1.0])
def test_a_price_that_is_none_saves_nothing_and_is_counted(price):
    pool = PoolTotals(10, 10)

    found = score_sources([ScoredNode("a", price, 2)], None, {"a": BALANCED}, {"a": pool})

    assert (found.approved, found.savings_per_hour, found.unpriced) == (False, 0.0, 1)


@given(price=prices, disruption=costs, pool=totals, k=ks)
def test_what_the_pre_filter_refuses_no_move_of_that_node_could_pass(price, disruption, pool, k):
    policy = ConsolidationPolicy(PolicyName.BALANCED, k)
    passes = can_pass(policy, price, disruption, pool)

    for share in (1.0, 0.5, 0.01):
        replaced = score_sources(
            [ScoredNode("a", price, disruption)], price * (1 - share), {"a": policy}, {"a": pool}
        )
        assert passes or not replaced.approved


def test_events_carry_the_numbers():
    found = score_move(7.26, 4, PoolTotals(58.08, 90), 2)

    assert event_text.approved(found, 2) == (
        "score 2.81 >= threshold 0.50 (k: 2, savings 12.5%, disruption 4.4%)"
    )
    assert event_text.approved(score_move(2.42, 9, PoolTotals(58.08, 90), 2), 2).startswith("score 0.42 < ")
    assert event_text.command("replace", ["a", "b"], 1) == "replace: [a, b] -> [1 replacement]"
    assert event_text.rejected("delete: [a]", "churn", 0.5) == (
        "Consolidation rejected: delete: [a], reason: churn (savings: $0.50)"
    )
