import pytest

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.priority import PriorityClass, is_critical, priority_of
from tests.model.build import Raw, pod


def ranked(name: str, value: int, *, default: bool = False) -> PriorityClass:
    return decode({"metadata": {"name": name}, "value": value, "globalDefault": default}, PriorityClass)


CLASSES = {each.name: each for each in (ranked("high", 1000), ranked("low", -10))}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"priority": 5, "priorityClassName": "high"}, 5, id="what admission gave"),
        pytest.param({"priority": 0}, 0, id="zero is a priority"),
        pytest.param({"priorityClassName": "high"}, 1000, id="its class"),
        pytest.param({"priorityClassName": "low"}, -10, id="a negative class"),
        pytest.param(
            {"priorityClassName": "system-node-critical"}, 2_000_001_000, id="a class of the system"
        ),
        pytest.param({}, 0, id="nothing"),
    ],
)
def test_priorities(spec: Raw, expected: int) -> None:
    assert priority_of(pod("p", **spec), CLASSES) == expected


def test_without_a_class_the_global_default_counts_and_of_several_the_lowest() -> None:
    one = {"std": ranked("std", 7, default=True), **CLASSES}
    two = {"other": ranked("other", 3, default=True), **one}

    assert priority_of(pod(), one) == 7
    assert priority_of(pod(), two) == 3


def test_a_class_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        Invalid, match=r"spec\.priorityClassName: 'vip': is a PriorityClass that does not exist"
    ):
        priority_of(pod(priorityClassName="vip"), CLASSES)


def test_critical_pods_are_those_of_the_system_classes() -> None:
    assert is_critical(pod(priorityClassName="system-cluster-critical"))
    assert not is_critical(pod(priorityClassName="high", priority=2_000_000_000))
