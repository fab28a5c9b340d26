"""Rooms are followed of clusters that are served; one that left is forgotten."""

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.serving.member import MemberEstimator
from karpool.estimator.serving.room_stream import RoomStreams
from karpool.kube.clock import RealClock
from tests.kube.tiny_server import TinyServer
from tests.kube.virtual import client_of, virtually


def test_nobody_follows_a_room_that_is_not_served() -> None:
    async def story() -> None:
        member = MemberEstimator("c", client_of(TinyServer()), Cluster(~Aspect(0)), Framework([]))
        members: dict[str, MemberEstimator] = {}
        streams = RoomStreams(members, RealClock())
        assert streams.room("c") is None
        members["c"] = member
        first = streams.room("c")
        assert first is not None and streams.room("c") is first
        del members["c"]
        assert streams.room("c") is None
        members["c"] = member
        assert streams.room("c") is not first

    virtually(story())
