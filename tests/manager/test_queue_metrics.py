from prometheus_client import CollectorRegistry

from karpool.kube.work_queue import WorkQueue
from karpool.manager.metrics import QueueMetrics
from karpool_fleet.clusters.clock import LoopClock
from tests.kube.virtual import virtually


def values(registry):
    wanted = ("depth", "adds_total", "retries_total", "unfinished_work_seconds", "work_duration_seconds_sum")
    found = {name: registry.get_sample_value(f"workqueue_{name}", {"name": "q"}) for name in wanted}
    return found | {
        "waited": registry.get_sample_value("workqueue_queue_duration_seconds_sum", {"name": "q"}),
        "longest": registry.get_sample_value("workqueue_longest_running_processor_seconds", {"name": "q"}),
    }


def test_a_queue_is_counted_and_timed_as_client_go_does_it():
    async def scenario():
        clock, registry = LoopClock(), CollectorRegistry()
        queue = WorkQueue(clock, chance=lambda: 1.0, tell=QueueMetrics(registry, "q", clock.monotonic))
        queue.add("a")
        queue.add("a")  # waits already
        queue.add("b")
        await clock.sleep(3)
        await queue.get()
        queue.add("a")  # again, after this
        queue.add("a", priority=5)
        await clock.sleep(2)
        during = values(registry)
        queue.done("a")
        queue.add_after("c", 60)
        await queue.get()
        queue.done("a")
        return during, values(registry)

    during, after = virtually(scenario())
    assert during == {
        "depth": 2,
        "adds_total": 3,
        "retries_total": 0,
        "unfinished_work_seconds": 2,
        "work_duration_seconds_sum": 0,
        "waited": 3,
        "longest": 2,
    }
    assert after == {
        "depth": 1,
        "adds_total": 3,
        "retries_total": 1,
        "unfinished_work_seconds": 0,
        "work_duration_seconds_sum": 2,
        "waited": 3 + 2,
        "longest": 0,
    }
