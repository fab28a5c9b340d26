"""Metrics of the local copies of rooms. Beta, like all `karpool_...`."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from karpool.scheduler.estimates.local_rooms import LocalRooms, RoomState
from karpool.scheduler.estimates.room_keeper import RoomKeeper

Clusters = Callable[[], Iterable[str]]


def follow_rooms(
    registry: CollectorRegistry, rooms: LocalRooms, keeper: RoomKeeper, clusters: Clusters
) -> None:
    registry.register(_Rooms(rooms, keeper, clusters))


class _Rooms(Collector):
    def __init__(self, rooms: LocalRooms, keeper: RoomKeeper, clusters: Clusters) -> None:
        self._rooms, self._keeper, self._clusters = rooms, keeper, clusters

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        states = GaugeMetricFamily(
            "karpool_scheduler_rooms",
            "Clusters by state of their copy; the scheduler does not ask the estimators of current ones.",
            labels=["state"],
        )
        ages = GaugeMetricFamily(
            "karpool_scheduler_room_age_seconds",
            "Maximum age of the copy of a cluster's free capacity.",
            labels=["cluster"],
        )
        counts = dict.fromkeys(RoomState, 0)
        for cluster in self._clusters():
            counts[self._rooms.state(cluster)] += 1
            age = self._rooms.age_seconds(cluster)
            if age is not None:
                ages.add_metric([cluster], age)
        for state, count in counts.items():
            states.add_metric([state.value], count)
        streams = GaugeMetricFamily(
            "karpool_scheduler_room_streams", "Estimator processes that send copies of free capacity."
        )
        streams.add_metric([], self._keeper.streams)
        answers = CounterMetricFamily(
            "karpool_scheduler_local_answers", "Answers computed from copies of free capacity."
        )
        answers.add_metric([], self._rooms.answered)
        return [states, ages, streams, answers]
