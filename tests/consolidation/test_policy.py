import pytest

from karpool.consolidation.policy.policy import (
    POLICY_ANNOTATION,
    THRESHOLD_ANNOTATION,
    ConsolidationPolicy,
    PolicyName,
    PolicyOverride,
    policy_of,
)
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NodePool
from karpool.model.kubernetes.meta import decode

BALANCED = PolicyName.BALANCED


def pool(field=None, **annotations):
    spec = {"disruption": {"consolidationPolicy": field}} if field else {}
    return decode({"metadata": {"name": "p", "annotations": annotations}, "spec": spec}, NodePool)


def annotated(policy=None, threshold=None, field=None):
    given = {POLICY_ANNOTATION: policy, THRESHOLD_ANNOTATION: threshold}
    return pool(field, **{key: value for key, value in given.items() if value is not None})


@pytest.mark.parametrize(
    ("given", "override", "expected"),
    [
        pytest.param(
            pool(),
            PolicyOverride(),
            ConsolidationPolicy(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED, 2, "field"),
            id="default",
        ),
        pytest.param(
            pool("Balanced"), PolicyOverride(), ConsolidationPolicy(BALANCED, 2, "field"), id="field"
        ),
        pytest.param(
            annotated("Balanced", "3", "WhenEmpty"),
            PolicyOverride(),
            ConsolidationPolicy(BALANCED, 3, "annotation"),
            id="both",
        ),
        pytest.param(
            annotated(None, "1", "Balanced"),
            PolicyOverride(),
            ConsolidationPolicy(BALANCED, 1, "field"),
            id="only k",
        ),
        pytest.param(
            annotated("WhenEmpty", "3"),
            PolicyOverride(BALANCED),
            ConsolidationPolicy(BALANCED, 3, "flag"),
            id="flag and k",
        ),
        pytest.param(
            annotated("nonsense", "9"),
            PolicyOverride(BALANCED, 1),
            ConsolidationPolicy(BALANCED, 1, "flag"),
            id="all flags",
        ),
    ],
)
def test_the_first_that_says_it_decides(given, override, expected):
    assert policy_of(given, override) == expected


@pytest.mark.parametrize(
    ("given", "path"),
    [
        pytest.param(annotated("balanced"), POLICY_ANNOTATION, id="case matters"),
        pytest.param(annotated("Balanced", "4"), THRESHOLD_ANNOTATION, id="too large"),
        pytest.param(annotated("Balanced", "2.0"), THRESHOLD_ANNOTATION, id="no whole number"),
        pytest.param(annotated("Balanced", ""), THRESHOLD_ANNOTATION, id="empty"),
        pytest.param(pool("Whenever"), "consolidationPolicy", id="a field that the schema would refuse"),
    ],
)
def test_what_cannot_be_used_names_its_place(given, path):
    with pytest.raises(Invalid) as error:
        policy_of(given)
    assert path in str(error.value)


def with_field(threshold, **annotations):
    disruption = {"consolidationPolicy": "Balanced", "consolidationThreshold": threshold}
    return decode(
        {"metadata": {"name": "p", "annotations": annotations}, "spec": {"disruption": disruption}}, NodePool
    )


def test_the_threshold_of_the_original_proposal_is_read():
    assert [policy_of(with_field(k)).k for k in (1, 2, 3, "3")] == [1, 2, 3, 3]
    assert policy_of(with_field(3, **{THRESHOLD_ANNOTATION: "1"})).k == 1
    assert policy_of(with_field(9), PolicyOverride(BALANCED, 1)).k == 1


@pytest.mark.parametrize("value", [0, 4, -1, 2.5, True, "two", [2], {}, 10**30])
def test_one_that_cannot_be_used_is_named(value):
    with pytest.raises(Invalid, match=r"spec\.disruption\.consolidationThreshold.*from 1 to 3"):
        policy_of(with_field(value))
