"""The rule of the framework, and that it is Karmada's where Karmada has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.estimator.plugins.interface import (
    EXISTING_NODES,
    UNLIMITED,
    CapacityPart,
    Estimate,
    EstimateCode,
    ExtensionPoint,
    PluginResult,
    PluginRole,
    merge_results,
    no_opinion,
)

amounts = st.integers(0, 2**40)


def source(name, amount, *parts, code=EstimateCode.SUCCESS):
    return PluginResult(name, PluginRole.SOURCE, Estimate(amount, code, (), parts))


def limit(amount, code=EstimateCode.SUCCESS):
    return PluginResult("limit", PluginRole.LIMIT, Estimate(amount, code))


def outcome(*verdicts):
    return merge_results(verdicts)


@given(st.lists(amounts, min_size=1), st.lists(amounts))
def test_the_answer_is_the_smaller_of_the_sum_and_every_limit(sources, limits):
    verdicts = [source(f"s{index}", amount) for index, amount in enumerate(sources)]
    verdicts += [limit(amount) for amount in limits]

    found = merge_results(verdicts)

    assert found.answer == min(sum(sources), UNLIMITED, *limits, UNLIMITED)


@given(amounts, amounts)
def test_nodes_that_two_sources_name_are_counted_once(existing, potential):
    nodes = CapacityPart(EXISTING_NODES, existing)
    both = outcome(
        source("NodeResource", existing, nodes),
        source("NodeAutoscaler", existing + potential, nodes, CapacityPart("karpenter/general", potential)),
    )

    assert both.answer == min(existing + potential, UNLIMITED)


@given(st.lists(amounts, min_size=1), amounts, st.integers(1, 100))
def test_more_room_never_lowers_and_more_limits_never_raise_the_answer(sources, limited, more):
    verdicts = [source(f"s{index}", amount) for index, amount in enumerate(sources)]
    before = merge_results(verdicts).answer

    assert merge_results([*verdicts, source("extra", more)]).answer >= before
    assert merge_results([*verdicts, limit(limited)]).answer <= before


def test_without_sources_limits_alone_decide_as_in_karmada():
    assert outcome(limit(3), limit(5)).answer == 3


def test_a_source_without_room_does_not_deny_that_of_another():
    empty = source("existing", 0, CapacityPart(EXISTING_NODES, 0), code=EstimateCode.UNSCHEDULABLE)

    assert outcome(empty, source("new", 4)).answer == 4
    assert outcome(empty).code is EstimateCode.UNSCHEDULABLE
    assert outcome(empty).answer == 0


def test_a_limit_that_says_no_says_no_for_all():
    assert outcome(source("a", 5), limit(7, EstimateCode.UNSCHEDULABLE)).answer == 0


def test_one_that_has_no_opinion_changes_nothing():
    silent = PluginResult("quiet", PluginRole.SOURCE, no_opinion("off"))

    assert outcome(source("a", 5), silent).answer == 5
    assert outcome(silent).code is EstimateCode.NOOPERATION
    assert outcome(silent).answer == UNLIMITED


@pytest.mark.parametrize("role", PluginRole)
def test_one_that_cannot_tell_leaves_nothing_to_tell(role):
    lost = PluginResult("lost", role, Estimate(-1, EstimateCode.UNKNOWN, ("gone",)))

    assert outcome(source("a", 5), limit(2), lost).answer == -1


def test_an_error_wins_over_everything():
    broken = limit(9, EstimateCode.ERROR)

    assert (
        outcome(
            source("a", 5), PluginResult("l", PluginRole.LIMIT, Estimate(-1, EstimateCode.UNKNOWN)), broken
        ).code
        is EstimateCode.ERROR
    )
    assert merge_results([limit(5), broken], ExtensionPoint.REPLICAS).value == 0
    assert merge_results([limit(5), broken], ExtensionPoint.COMPONENTS).value == 5


def test_a_negative_number_is_none():
    assert outcome(limit(-7)).answer == 0
