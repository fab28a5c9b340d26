"""The Kubernetes API of one embedded cluster, as a function from requests to responses.

`ApiServer.handle` knows no sockets, threads or wall clock: `http` puts it on the
network and `inprocess` calls it directly. A request is carried out in one synchronous
step; only waiting for the journal, and streaming a watch, take time.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from karpool.fleet.apiserver import endpoints, routes
from karpool.fleet.apiserver.bootstrap import bootstrap
from karpool.fleet.apiserver.cluster import Admission, Cluster
from karpool.fleet.apiserver.documents.responding import Documents
from karpool.fleet.apiserver.expiry import Expiry
from karpool.fleet.apiserver.garbage import Garbage
from karpool.fleet.apiserver.kinds.builtin import builtin_types, review_types
from karpool.fleet.apiserver.kinds.customs import CustomResources
from karpool.fleet.apiserver.kinds.registry import Registry
from karpool.fleet.apiserver.namespaces import Namespaces
from karpool.fleet.apiserver.rest import Rest
from karpool.fleet.apiserver.status import StatusError, bad_request, internal, no_such_path
from karpool.fleet.apiserver.storage.history import MAX_EVENTS
from karpool.fleet.apiserver.storage.store import Store
from karpool.fleet.apiserver.types import ResourceType
from karpool.fleet.apiserver.watching import WatchStream
from karpool.kube.clock import Clock
from karpool.kube.transport import Request, Response

if TYPE_CHECKING:
    from karpool.fleet.apiserver.storage.durability import Durability
    from karpool.fleet.apiserver.storage.journal import Journal

log = structlog.get_logger(__name__)

Answer = Response | WatchStream
Handler = Callable[[Request], Awaitable[Answer]]


class ApiServer:
    def __init__(
        self,
        clock: Clock,
        *,
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
        journal: "Journal | None" = None,
        types: Iterable[ResourceType] | None = None,
        history_events: int = MAX_EVENTS,
        track_fields: bool = False,
    ) -> None:
        """`track_fields` keeps metadata.managedFields of every object, as a real server does.

        That doubles the size of a pod and costs a write a third more time; without it an
        object's fields are tracked from its first server-side apply on.
        """
        if types is None:
            types = [*builtin_types(), *review_types()]
        store = Store(clock.monotonic, history_events=history_events)
        self._durability = _durability(journal, store)
        self.cluster = Cluster(clock, ids, store, Registry(types))
        self.cluster.track_fields = track_fields
        self._customs = CustomResources(self.cluster)
        self._garbage = Garbage(self.cluster)
        self._namespaces = Namespaces(self.cluster)
        self._expiry = Expiry(self.cluster)
        # A place to stand between clients and the server: delays, errors, cut watches.
        self.around: Callable[[Request, Handler], Awaitable[Answer]] | None = None
        self._documents = Documents(self.cluster.types)
        self._rest = Rest(self.cluster, self._durability.settle if self._durability else None)
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
        if self._durability is not None:
            await self._durability.close()

    async def _handle(self, request: Request) -> Answer:
        if not self._started:
            self._start()
        try:
            answer = self._dispatch(request)
        except StatusError as error:
            answer = error.response()
        except RecursionError:
            answer = bad_request("the object is nested too deeply").response()
        except Exception:
            log.exception("a request could not be answered", method=request.method, path=request.path[:200])
            answer = internal("the server met an error of its own; its log says more").response()
        if not self.cluster.background.idle:
            self.cluster.background.kick()
        if self._durability is not None and self._durability.pending:
            try:
                await self._durability.settle()
            except StatusError as error:
                return error.response()
        return answer

    def _start(self) -> None:
        """On the first request, since only then does every clock tell the time."""
        self._started = True
        for part in (self._customs, self._garbage, self._namespaces, self._expiry, self.cluster.budgets):
            part.resume()
        bootstrap(self.cluster)

    def _dispatch(self, request: Request) -> Answer:
        route = routes.parse(request.path)
        if route is not None:
            resource = self.cluster.types.find(route.group, route.version, route.plural)
            if resource is not None:
                return self._rest.answer(request, route, resource)
        answer = endpoints.respond(request) or self._documents.respond(request)
        if answer is None:
            raise no_such_path(request.path)
        return answer


def _durability(journal: "Journal | None", store: Store) -> "Durability | None":
    if journal is None:
        return None
    from karpool.fleet.apiserver.storage.durability import Durability

    return Durability(journal, store)
