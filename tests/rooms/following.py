"""A scheduler's end of the streams, over real gRPC, and servers that say what a test wants."""

import asyncio
from contextlib import asynccontextmanager

import grpc

from karpool.kube.clock import RealClock
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.rooms.room_change import PROTOCOL
from karpool.scheduler.estimates.estimate_cache import EstimatorQuestion
from karpool.scheduler.estimates.estimator_client import EstimatorClient, EstimatorSettings
from karpool.scheduler.estimates.local_rooms import LocalRooms
from karpool.scheduler.estimates.room_keeper import RoomKeeper
from karpool.wire.proto import rooms_pb2 as pb
from karpool.wire.requests import ROOMS


class Follower:
    def __init__(self, ports, ledger=None, max_age_seconds=60.0):
        """`ports` by cluster: where its estimator is."""
        self.ports, self.ledger = ports, ledger

        async def address(cluster):
            return [f"127.0.0.1:{self.ports[cluster]}"]

        clock = RealClock()
        self.clients = EstimatorClient(address, EstimatorSettings(timeout_seconds=20.0), clock)
        self.rooms = LocalRooms(ledger, clock, max_age_seconds=max_age_seconds)
        self.keeper = RoomKeeper(self.clients.channel, self.rooms, clock)

    def local(self, request, cluster):
        """The number from the copy; None when its estimator would be asked."""
        part = self.rooms.parts(EstimatorQuestion(request), [MemberCluster(cluster)]).get(cluster)
        return None if part is None else (part.value, part.room)

    async def asked(self, request, cluster, promises=()):
        question = EstimatorQuestion(request)
        reply = await self.clients.ask(MemberCluster(cluster), question.asked, promises)
        return reply.value, reply.parts

    def is_current(self, *clusters):
        return all(self.rooms.is_current(cluster) for cluster in clusters)


@asynccontextmanager
async def following(ports, ledger=None, **settings):
    follower = Follower(ports, ledger, **settings)
    follower.keeper.keep(list(ports))
    try:
        yield follower
    finally:
        await follower.keeper.close()
        await follower.clients.close()


class ScriptedRooms:
    """A server of rooms that sends what it is given, frames or bytes, once so many clusters are followed."""

    def __init__(self, *frames, hello=True, instance="scripted", clusters=1):
        self.frames, self._clusters = list(frames), clusters
        if hello:
            self.frames.insert(0, pb.RoomFrame(hello=pb.RoomHello(protocol=PROTOCOL, instance=instance)))
        self._joined = asyncio.Event()
        self.requests, self.calls, self.port, self._server = [], 0, 0, None

    async def start(self):
        async def follow(requests, context):
            self.calls += 1

            async def listen():
                async for data in requests:
                    self.requests.append(pb.FollowRequest.FromString(data))
                    if self._followed() >= self._clusters:
                        self._joined.set()

            listening = asyncio.ensure_future(listen())
            for index, frame in enumerate(self.frames):
                if index:
                    await self._joined.wait()
                yield frame if isinstance(frame, bytes) else frame.SerializeToString()
            await listening

        self._server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(follow)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(ROOMS, {"Follow": handler})]
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    def _followed(self):
        return len({room.cluster for request in self.requests for room in request.rooms})

    async def stop(self):
        await self._server.stop(None)


@asynccontextmanager
async def scripted(*frames, **more):
    server = ScriptedRooms(*frames, **more)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
