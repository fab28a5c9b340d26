"""Estimators of all characters, over real gRPC: honest, slow, lying, refusing, silent."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from karpool.kube.clock import RealClock
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.scheduler.estimates.estimator_client import EstimatorClient, EstimatorSettings
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ESTIMATOR


class Server:
    """`behave(request bytes) -> response bytes`, sync or async; what it raises refuses the call."""

    def __init__(self, behave):
        self.behave = behave
        self.requests = []
        self.metadata = []
        self.port = 0
        self._server = None

    async def start(self, port=0, credentials=None):
        async def handle(data, context):
            self.requests.append(data)
            self.metadata.append(dict(context.invocation_metadata()))
            result = self.behave(data)
            if asyncio.iscoroutine(result):
                result = await result
            if isinstance(result, grpc.StatusCode):
                await context.abort(result, "no\x00 answer")
            return result

        methods = ("MaxAvailableReplicas", "MaxAvailableComponentSets", "GetUnschedulableReplicas")
        handlers = {name: grpc.unary_unary_rpc_method_handler(handle) for name in methods}
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(ESTIMATOR, handlers)])
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        await self._server.start()

    async def stop(self):
        await self._server.stop(None)


def says(number):
    return lambda _: pb.MaxAvailableReplicasResponse(max_replicas=number).SerializeToString()


async def hangs(_):
    await asyncio.Event().wait()


def member(name="m1", **more):
    return MemberCluster(name, **more)


@asynccontextmanager
async def asking(servers, *, clock=None, resolver=None, credentials=None, **settings):
    """Clients of the servers by cluster; a server None is a port where nobody listens."""
    async with AsyncExitStack() as stack:
        for server in servers.values():
            if server is not None:
                await server.start(credentials=credentials)
                stack.push_async_callback(server.stop)

        async def addresses(cluster):
            server = servers[cluster]
            return ["127.0.0.1:1"] if server is None else [f"127.0.0.1:{server.port}"]

        chosen = EstimatorSettings(**({"timeout_seconds": 5.0} | settings))
        clients = EstimatorClient(resolver or addresses, chosen, clock or RealClock())
        stack.push_async_callback(clients.close)
        yield clients
