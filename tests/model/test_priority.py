from karpool.model.kubernetes.priority import is_critical
from tests.model.build import pod


def test_critical_pods_are_those_of_the_system_classes() -> None:
    assert is_critical(pod(priorityClassName="system-cluster-critical"))
    assert not is_critical(pod(priorityClassName="high", priority=2_000_000_000))
