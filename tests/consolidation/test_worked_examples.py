"""The examples that Karpenter's design is explained with, per-node base included."""

import pytest

from karpool.consolidation.policy.policy import ConsolidationPolicy, PolicyName
from karpool.consolidation.policy.scoring import PoolTotals, ScoredNode, score_move, score_sources

MIXED = PoolTotals(58.08, 90)  # eight m7i.xlarge, two m7i.2xlarge, 80 pods; USD per day
UNIFORM = PoolTotals(48.40, 90)  # ten m7i.xlarge
SPOT = PoolTotals(14.50, 90)


@pytest.mark.parametrize(
    ("savings", "disruption", "pool", "score", "approved_at"),
    [
        pytest.param(7.26, 4, MIXED, 2.8125, {1, 2, 3}, id="an oversized node"),
        pytest.param(4.84, 5, MIXED, 1.5, {1, 2, 3}, id="spare room"),
        pytest.param(2.42, 9, MIXED, 0.4167, {3}, id="marginal"),
        pytest.param(0.0, 11, MIXED, 0.0, set(), id="well packed"),
        pytest.param(2.42, 9, UNIFORM, 0.5, {2, 3}, id="one size down in a pool of equals"),
        pytest.param(7.26, 4, PoolTotals(580.80, 900), 2.8125, {1, 2, 3}, id="oversized among a hundred"),
        pytest.param(4.84, 5, PoolTotals(58.08, 117), 1.95, {1, 2, 3}, id="ordinary pods among dear ones"),
        pytest.param(4.84, 32, PoolTotals(58.08, 117), 0.3047, set(), id="dear pods"),
        pytest.param(4.84, 4, UNIFORM, 2.25, {1, 2, 3}, id="on demand"),
        pytest.param(1.45, 4, SPOT, 2.25, {1, 2, 3}, id="spot, the same"),
        pytest.param(1.45, 9, SPOT, 1.0, {1, 2, 3}, id="spot, average load"),
        pytest.param(1.45, 17, PoolTotals(14.50, 98), 0.5765, {2, 3}, id="spot, dear pods"),
        pytest.param(3.0, 7, PoolTotals(3.0, 7), 1.0, {1, 2, 3}, id="the only node"),
        pytest.param(0.10, 4, PoolTotals(1.0, 10), 0.25, set(), id="on demand only, spot is cheaper"),
        pytest.param(1.0, 21, PoolTotals(2.0, 23), 0.5476, {2, 3}, id="the heavy one of two"),
        pytest.param(1.0, 41, PoolTotals(2.0, 43), 0.5244, {2, 3}, id="the heavier one of two"),
        pytest.param(5, 50, PoolTotals(100, 100), 0.1, set(), id="much ado about little"),
    ],
)
def test_worked_example(savings, disruption, pool, score, approved_at):
    found = {k: score_move(savings, disruption, pool, k) for k in (1, 2, 3)}

    assert found[2].score == pytest.approx(score, abs=5e-5)
    assert {k for k, each in found.items() if each.approved} == approved_at


def test_what_rounds_below_the_threshold_is_approved_by_us_and_not_upstream():
    """A spot node with pods of cost 2, the base left out: 0.5 on paper, a bit less in doubles."""
    pool = PoolTotals(14.50, 80)

    assert score_move(1.45, 16, pool, 2).score < 0.5
    assert score_move(1.45, 16, pool, 2).approved
    assert not score_move(1.45, 16, pool, 2, tolerance=0).approved


def test_a_cheap_pool_is_judged_by_its_own_prices():
    """Reserved capacity is priced at a ten-millionth; the divisor cancels."""
    policy = {"p": ConsolidationPolicy(PolicyName.BALANCED)}

    for scale in (1.0, 1e-7, 1e-12):
        pool = {"p": PoolTotals(48.40 * scale, 90)}
        assert score_sources([ScoredNode("p", 4.84 * scale, 5)], 2.42 * scale, policy, pool).approved
        assert not score_sources([ScoredNode("p", 4.84 * scale, 15)], 2.42 * scale, policy, pool).approved
