"""The gRPC server: ports, TLS, health and reflection around the service.

It listens at once and reports NOT_SERVING until every cluster is synced. Leaving the context lets calls in
progress finish, within the grace period.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from karpool.estimator.serving.member import MemberEstimator
from karpool.estimator.serving.service import EstimatorService
from karpool.wire.requests import ESTIMATOR, EXPLAINER, ROOM_WATCHER, ROOMS, SUMMARIZER
from karpool.wire.server_protocol import MESSAGE_BYTES_MAX
from karpool.wire.server_tls import TlsFiles, server_credentials

log = structlog.get_logger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = ("", ESTIMATOR, EXPLAINER, ROOM_WATCHER, ROOMS, SUMMARIZER)
POLL_SECONDS = 0.1
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server behind it
    ("grpc.server_handshake_timeout_ms", 10_000),
)


class CannotListen(OSError):
    pass


class EstimatorServer:
    """Serves until the context is left. Port 0 takes any free one; `port` is the actual one."""

    def __init__(
        self,
        service: EstimatorService,
        members: Mapping[str, MemberEstimator],
        not_ready: Callable[[], str | None],
        *,
        host: str = "[::]",
        port: int = 0,
        tls: TlsFiles | None = None,
        concurrent: int = 1000,
        grace_seconds: float = 10.0,
    ) -> None:
        self.port = port
        self._service = service
        self._members = members
        self._not_ready = not_ready
        self._host = host
        self._tls = tls
        self._concurrent = concurrent
        self._grace = grace_seconds
        self._health = health.aio.HealthServicer()
        self._counted: set[str] = set()
        self._watching: asyncio.Task[None] | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "EstimatorServer":
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=self._concurrent)
        server.add_generic_rpc_handlers(self._service.handlers())
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        services = (*filter(None, SERVICES), health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(services, server)
        self.port = self._listen(server)
        for name in (*SERVICES, *self._members):
            await self._health.set(name, NOT_SERVING)
        await server.start()
        self._stack.push_async_callback(server.stop, self._grace)
        self._stack.push_async_callback(self._health.enter_graceful_shutdown)
        self.announce()
        self._stack.callback(lambda: self._watching.cancel() if self._watching is not None else None)
        log.info(
            "estimator listening", port=self.port, clusters=len(self._members), tls=self._tls is not None
        )
        return self

    async def __aexit__(self, *exit_: object) -> None:
        await self._stack.aclose()

    def _listen(self, server: grpc.aio.Server) -> int:
        address = f"{self._host}:{self.port}"
        try:
            if self._tls is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, server_credentials(self._tls))
        except RuntimeError as error:
            raise CannotListen(
                f"gRPC cannot listen on {address}: {error}; choose another --server-port"
            ) from None

    def announce(self) -> None:
        """Clusters were added or removed: update their health until all are synced."""
        if self._watching is not None:
            self._watching.cancel()
        self._watching = asyncio.create_task(self._announce(), name="estimator health")

    async def _announce(self) -> None:
        """Update the health service as clusters are synced; each cluster is its own service there."""
        for name in self._counted - self._members.keys():
            self._counted.discard(name)
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        while True:
            for name, member in list(self._members.items()):
                if name not in self._counted and member.not_ready() is None:
                    self._counted.add(name)
                    await self._health.set(name, SERVING)
                    log.info("cluster counted", cluster=name, nodes=member.cluster.snapshot().room.n)
            if self._not_ready() is None:
                for service in SERVICES:
                    await self._health.set(service, SERVING)
                if self._counted >= self._members.keys():
                    return
            await asyncio.sleep(POLL_SECONDS)
