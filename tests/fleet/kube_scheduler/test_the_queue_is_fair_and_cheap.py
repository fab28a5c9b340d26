"""The scheduling queue alone: order, back-off, one trial per shape and event."""

from hypothesis import given
from hypothesis import strategies as st

from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod_shape import PodShape
from karpool_fleet.kube_scheduler.queue import QueuedPod, SchedulingQueue

A, B = PodShape(labels=(("app", "a"),)), PodShape(labels=(("app", "b"),))


def queue() -> SchedulingQueue:
    return SchedulingQueue(1.0, 10.0, 300.0, 30.0)


def pod(name: str, priority: int = 0, created: str = "1") -> QueuedPod:
    return QueuedPod(ObjectKey("default", name), name, priority, created)


def popped(waiting: SchedulingQueue, now: float = 0.0) -> list[str]:
    found = []
    while (each := waiting.pop(now)) is not None:
        found.append(each.key.name)
    return found


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 9)), max_size=20))
def test_priority_first_then_age(given_pods: list[tuple[int, int]]) -> None:
    waiting = queue()
    for number, (priority, created) in enumerate(given_pods):
        waiting.add(pod(f"p{number:02}", priority, str(created)))

    names = [f"p{number:02}" for number in range(len(given_pods))]
    order = sorted(
        names, key=lambda name: (-given_pods[int(name[1:])][0], given_pods[int(name[1:])][1], name)
    )
    assert popped(waiting) == order


def parked(waiting: SchedulingQueue, shape: PodShape, *names: str, now: float = 0.0) -> list[QueuedPod]:
    pods = [pod(name) for name in names]
    for each in pods:
        waiting.add(each)
        waiting.pop(now)
        waiting.park(each, shape, "full", now)
    return pods


def test_an_event_tries_one_pod_of_each_shape_that_it_may_help() -> None:
    waiting = queue()
    parked(waiting, A, "a1", "a2", "a3")
    parked(waiting, B, "b1", "b2")

    waiting.wake(lambda shape: shape is A, 100.0)
    assert popped(waiting, 100.0) == ["a1"]


def test_the_next_of_a_shape_follows_when_the_first_found_a_place() -> None:
    waiting = queue()
    first, second, _ = parked(waiting, A, "a1", "a2", "a3")

    waiting.wake(lambda shape: True, 100.0)
    waiting.pop(100.0)
    waiting.placed(first)
    assert waiting.pop(100.0) is second
    waiting.park(second, A, "full", 100.0)
    assert waiting.pop(100.0) is None


def test_the_next_of_a_shape_follows_when_the_first_is_deleted() -> None:
    waiting = queue()
    first, second = parked(waiting, A, "a1", "a2")

    waiting.wake(lambda shape: True, 100.0)
    waiting.remove(first.key)
    assert waiting.pop(100.0) is second


def test_pods_that_back_off_come_after_the_others_but_do_come() -> None:
    waiting = queue()
    parked(waiting, A, "old", now=100.0)
    waiting.wake(lambda shape: True, 100.5)
    waiting.add(pod("young", created="2"))
    assert popped(waiting, 100.5) == ["young", "old"]


def test_after_an_error_the_back_off_is_waited_for() -> None:
    waiting = queue()
    failed = pod("p")
    waiting.add(failed)
    for wait in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert waiting.pop(100.0) is failed
        waiting.delay(failed, 100.0)
        assert waiting.next_due() == 100.0 + wait
        assert waiting.pop(100.0 + wait - 0.01) is None
        waiting.due(100.0 + wait)


def test_who_has_waited_for_five_minutes_is_tried_again() -> None:
    waiting = queue()
    parked(waiting, A, "a1", "a2", now=10.0)
    waiting.due(309.0)
    assert popped(waiting, 309.0) == []
    waiting.due(310.0)
    assert popped(waiting, 310.0) == ["a1", "a2"]


def test_the_others_of_a_shape_are_told_a_new_reason_once_and_later() -> None:
    waiting = queue()
    first, *_ = parked(waiting, A, "a1", "a2", "a3")
    waiting.wake(lambda shape: True, 100.0)
    waiting.pop(100.0)
    waiting.park(first, A, "still full", 100.0)

    assert waiting.due(129.0) == []
    assert [(each.key.name, each.message) for each in waiting.due(130.0)] == [
        ("a2", "still full"),
        ("a3", "still full"),
    ]
    assert waiting.due(131.0) == []


def test_removed_pods_leave_no_trace() -> None:
    waiting = queue()
    for each in parked(waiting, A, "a1", "a2"):
        waiting.remove(each.key)
    waiting.wake(lambda shape: True, 100.0)
    assert popped(waiting, 100.0) == [] and len(waiting) == 0
    waiting.due(1000.0)
    assert popped(waiting, 1000.0) == []
    assert waiting.next_due() is None
