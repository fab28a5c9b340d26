"""The Kubernetes API of one embedded cluster, as a function from requests to responses.

`ApiServer.handle` knows no sockets, threads or wall clock: `http` puts it on the
network and `inprocess` calls it directly. A request is carried out in one synchronous
step; only waiting for the journal, and streaming a watch, take time.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable

import structlog

from karpool.fleet.apiserver import namespaces, routes
from karpool.fleet.apiserver.cluster import Admission, Cluster
from karpool.fleet.apiserver.resources import Registry
from karpool.fleet.apiserver.rest import Rest
from karpool.fleet.apiserver.status import StatusError, internal, no_such_path
from karpool.fleet.apiserver.store import Store
from karpool.fleet.apiserver.types import ResourceType
from karpool.fleet.apiserver.watching import WatchStream
from karpool.kube.clock import Clock
from karpool.kube.transport import Request, Response

log = structlog.get_logger(__name__)

Answer = Response | WatchStream
Handler = Callable[[Request], Awaitable[Answer]]


class ApiServer:
    def __init__(
        self,
        clock: Clock,
        *,
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
        types: Iterable[ResourceType] | None = None,
    ) -> None:
        if types is None:
            from karpool.fleet.apiserver.builtin import builtin_types

            types = builtin_types()
        self.cluster = Cluster(clock, ids, Store(), Registry(types))
        # A place to stand between clients and the server: delays, errors, cut watches.
        self.around: Callable[[Request, Handler], Awaitable[Answer]] | None = None
        self._rest = Rest(self.cluster, None)
        self._started = False

    @property
    def admission(self) -> list[Admission]:
        return self.cluster.admission

    async def handle(self, request: Request) -> Answer:
        if self.around is not None:
            return await self.around(request, self._handle)
        return await self._handle(request)

    async def settle(self) -> None:
        """Return when garbage collection and the like have caught up."""
        await self.cluster.background.settle()

    async def close(self) -> None:
        """End every watch; nothing is accepted afterwards that would start new work."""
        for collection in self.cluster.store.collections():
            collection.history.close()
        await self.cluster.background.close()

    async def _handle(self, request: Request) -> Answer:
        if not self._started:
            self._start()
        try:
            answer = self._dispatch(request)
        except StatusError as error:
            answer = error.response()
        except Exception:
            log.exception("a request could not be answered", method=request.method, path=request.path[:200])
            answer = internal("the server met an error of its own; its log says more").response()
        if not self.cluster.background.idle:
            self.cluster.background.kick()
        return answer

    def _start(self) -> None:
        """On the first request, since only then does every clock tell the time."""
        self._started = True
        namespaces.ensure(self.cluster)

    def _dispatch(self, request: Request) -> Answer:
        route = routes.parse(request.path)
        if route is None:
            raise no_such_path(request.path)
        resource = self.cluster.types.find(route.group, route.version, route.plural)
        if resource is None:
            raise no_such_path(request.path)
        return self._rest.answer(request, route, resource)
