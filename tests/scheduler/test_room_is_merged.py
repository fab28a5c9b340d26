import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.scheduler.cycle.decision import ACCURATE, GENERAL, MANY, UNKNOWN, EstimatePart
from karpool.scheduler.cycle.settings import EstimateMergeRule, SchedulingSettings
from karpool.scheduler.estimates.availability import merge

MIN, PREFER, HIGHER = (
    EstimateMergeRule.MIN,
    EstimateMergeRule.PREFER_ACCURATE,
    EstimateMergeRule.ACCURATE_IF_HIGHER,
)


@pytest.mark.parametrize(
    ("general", "accurate", "rule", "expected"),
    [
        pytest.param(0, 50, MIN, (0, GENERAL), id="upstream clips what an autoscaler would add"),
        pytest.param(0, 50, PREFER, (50, ACCURATE), id="prefer: not clipped"),
        pytest.param(0, 50, HIGHER, (50, ACCURATE), id="if higher: not clipped"),
        pytest.param(50, 3, HIGHER, (3, ACCURATE), id="if lower: the minimum"),
        pytest.param(50, 3, PREFER, (3, ACCURATE), id="prefer: lower too"),
        pytest.param(8, None, HIGHER, (8, GENERAL), id="a dead estimator leaves the summary"),
        pytest.param(8, None, PREFER, (8, GENERAL), id="a dead estimator leaves the summary, prefer"),
        pytest.param(8, -1, HIGHER, (8, GENERAL), id="-1 is not known"),
        pytest.param(None, 4, MIN, (4, ACCURATE), id="only the estimator"),
        pytest.param(None, None, MIN, (7, UNKNOWN), id="nobody knows: as many as asked for"),
        pytest.param(MANY, MANY, MIN, (7, GENERAL), id="nobody sees a limit: as many as asked for"),
        pytest.param(3, 2**62, HIGHER, (7, ACCURATE), id="a huge answer is no limit"),
    ],
)
def test_rule(general, accurate, rule, expected):
    found = merge([EstimatePart(GENERAL, general), EstimatePart(ACCURATE, accurate)], rule, 7)

    assert (found.replicas, found.source) == expected
    assert len(found.parts) == 2


def test_a_cap_of_somebody_else_holds_whatever_the_estimator_says():
    parts = [
        EstimatePart(GENERAL, 1),
        EstimatePart(ACCURATE, 50),
        EstimatePart("cool-down", 0, "took 3 replicas back a minute ago"),
    ]

    assert merge(parts, HIGHER, 7).replicas == 0


def test_the_default_does_not_clip():
    assert SchedulingSettings().merge is HIGHER


@given(st.lists(st.tuples(st.sampled_from([GENERAL, ACCURATE, "x"]), st.none() | st.integers()), max_size=3))
def test_whatever_is_answered_the_result_is_a_number_of_replicas(answers):
    parts = [EstimatePart(*each) for each in dict(answers).items()]

    for rule in EstimateMergeRule:
        assert 0 <= merge(parts, rule, 7).replicas <= MANY


@pytest.mark.parametrize("rule", list(EstimateMergeRule))
def test_no_replicas_at_all_fit_everywhere_whatever_is_said(rule):
    parts = [EstimatePart(GENERAL, 0), EstimatePart(ACCURATE, 3)]

    assert merge(parts, rule, 0).replicas == MANY
    assert merge(parts, rule, 1).replicas in (0, 3)
