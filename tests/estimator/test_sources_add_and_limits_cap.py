"""The rule of the framework, and that it is Karmada's where Karmada has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.estimator.framework import (
    EXISTING_NODES,
    UNLIMITED,
    Code,
    Estimate,
    Part,
    Point,
    Role,
    Verdict,
    merged,
    no_opinion,
)

amounts = st.integers(0, 2**40)


def source(name, amount, *parts, code=Code.SUCCESS):
    return Verdict(name, Role.SOURCE, Estimate(amount, code, (), parts))


def limit(amount, code=Code.SUCCESS):
    return Verdict("limit", Role.LIMIT, Estimate(amount, code))


def outcome(*verdicts):
    return merged(verdicts)


@given(st.lists(amounts, min_size=1), st.lists(amounts))
def test_the_answer_is_the_smaller_of_the_sum_and_every_limit(sources, limits):
    verdicts = [source(f"s{index}", amount) for index, amount in enumerate(sources)]
    verdicts += [limit(amount) for amount in limits]

    found = merged(verdicts)

    assert found.answer == min(sum(sources), UNLIMITED, *limits, UNLIMITED)


@given(amounts, amounts)
def test_nodes_that_two_sources_name_are_counted_once(existing, potential):
    nodes = Part(EXISTING_NODES, existing)
    both = outcome(
        source("NodeResource", existing, nodes),
        source("NodeAutoscaler", existing + potential, nodes, Part("karpenter/general", potential)),
    )

    assert both.answer == min(existing + potential, UNLIMITED)


@given(st.lists(amounts, min_size=1), amounts, st.integers(1, 100))
def test_more_room_never_lowers_and_more_limits_never_raise_the_answer(sources, limited, more):
    verdicts = [source(f"s{index}", amount) for index, amount in enumerate(sources)]
    before = merged(verdicts).answer

    assert merged([*verdicts, source("extra", more)]).answer >= before
    assert merged([*verdicts, limit(limited)]).answer <= before


def test_without_sources_limits_alone_decide_as_in_karmada():
    assert outcome(limit(3), limit(5)).answer == 3


def test_a_source_without_room_does_not_deny_that_of_another():
    empty = source("existing", 0, Part(EXISTING_NODES, 0), code=Code.UNSCHEDULABLE)

    assert outcome(empty, source("new", 4)).answer == 4
    assert outcome(empty).code is Code.UNSCHEDULABLE
    assert outcome(empty).answer == 0


def test_a_limit_that_says_no_says_no_for_all():
    assert outcome(source("a", 5), limit(7, Code.UNSCHEDULABLE)).answer == 0


def test_one_that_has_no_opinion_changes_nothing():
    silent = Verdict("quiet", Role.SOURCE, no_opinion("off"))

    assert outcome(source("a", 5), silent).answer == 5
    assert outcome(silent).code is Code.NOOPERATION
    assert outcome(silent).answer == UNLIMITED


@pytest.mark.parametrize("role", Role)
def test_one_that_cannot_tell_leaves_nothing_to_tell(role):
    lost = Verdict("lost", role, Estimate(-1, Code.UNKNOWN, ("gone",)))

    assert outcome(source("a", 5), limit(2), lost).answer == -1


def test_an_error_wins_over_everything():
    broken = limit(9, Code.ERROR)

    assert (
        outcome(source("a", 5), Verdict("l", Role.LIMIT, Estimate(-1, Code.UNKNOWN)), broken).code
        is Code.ERROR
    )
    assert merged([limit(5), broken], Point.REPLICAS).value == 0
    assert merged([limit(5), broken], Point.COMPONENTS).value == 5


def test_a_negative_number_is_none():
    assert outcome(limit(-7)).answer == 0
