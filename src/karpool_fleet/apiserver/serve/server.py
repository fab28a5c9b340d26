"""The Kubernetes API of one embedded cluster, as a function from requests to responses.

`ApiServer.handle` uses no sockets, threads or wall clock: `http` puts it on the network and `inprocess` calls
it directly. A request is executed in one synchronous step; only waiting for the journal, and streaming a
watch, take time.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from karpool.kube.clock import Clock
from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.documents.documents import Documents
from karpool_fleet.apiserver.kinds.builtin import builtin_types, review_types
from karpool_fleet.apiserver.kinds.custom_resources import CustomResources
from karpool_fleet.apiserver.kinds.registry import Registry
from karpool_fleet.apiserver.objects.bootstrap import bootstrap
from karpool_fleet.apiserver.objects.cluster import Admission, ServedCluster
from karpool_fleet.apiserver.objects.expiry import Expiry
from karpool_fleet.apiserver.objects.garbage import Garbage
from karpool_fleet.apiserver.objects.namespaces import Namespaces
from karpool_fleet.apiserver.objects.types import ResourceType
from karpool_fleet.apiserver.serve import endpoints, routes
from karpool_fleet.apiserver.serve.rest import ResourceVerbs
from karpool_fleet.apiserver.serve.status import ApiStatusError, bad_request, internal, no_such_path
from karpool_fleet.apiserver.storage.history import MAX_EVENTS
from karpool_fleet.apiserver.storage.store import ObjectStore
from karpool_fleet.apiserver.verbs.watch import WatchStream

if TYPE_CHECKING:
    from karpool_fleet.apiserver.storage.durability import Durability
    from karpool_fleet.apiserver.storage.journal import Journal

log = structlog.get_logger(__name__)

Answer = HttpResponse | WatchStream
Handler = Callable[[HttpRequest], Awaitable[Answer]]


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
        store = ObjectStore(clock.monotonic, history_events=history_events)
        self._durability = _durability(journal, store)
        self.cluster = ServedCluster(clock, ids, store, Registry(types))
        self.cluster.track_fields = track_fields
        self._customs = CustomResources(self.cluster)
        self._garbage = Garbage(self.cluster)
        self._namespaces = Namespaces(self.cluster)
        self._expiry = Expiry(self.cluster)
        # Hook between clients and the server, for faults: delays, errors, cut watches.
        self.around: Callable[[HttpRequest, Handler], Awaitable[Answer]] | None = None
        self._documents = Documents(self.cluster.types)
        self._rest = ResourceVerbs(self.cluster, self._durability.settle if self._durability else None)
        self._started = False

    @property
    def admission(self) -> list[Admission]:
        return self.cluster.admission

    async def handle(self, request: HttpRequest) -> Answer:
        if self.around is not None:
            return await self.around(request, self._handle)
        return await self._handle(request)

    async def settle(self) -> None:
        """Wait until background work, such as garbage collection, is done."""
        await self.cluster.background.settle()

    async def close(self) -> None:
        """End every watch; later requests start no new work."""
        for collection in self.cluster.store.collections():
            collection.history.close()
        await self.cluster.background.close()
        if self._durability is not None:
            await self._durability.close()

    async def _handle(self, request: HttpRequest) -> Answer:
        if not self._started:
            self._start()
        try:
            answer = self._dispatch(request)
        except ApiStatusError as error:
            answer = error.response()
        except RecursionError:
            answer = bad_request("the object is nested too deeply").response()
        except Exception:
            log.exception("request failed", method=request.method, path=request.path[:200])
            answer = internal("the server met an error of its own; its log says more").response()
        if not self.cluster.background.idle:
            self.cluster.background.kick()
        if self._durability is not None and self._durability.pending:
            try:
                await self._durability.settle()
            except ApiStatusError as error:
                return error.response()
        return answer

    def _start(self) -> None:
        """Start on the first request, because some clocks tell the time only then."""
        self._started = True
        for part in (self._customs, self._garbage, self._namespaces, self._expiry, self.cluster.budgets):
            part.resume()
        bootstrap(self.cluster)

    def _dispatch(self, request: HttpRequest) -> Answer:
        route = routes.parse(request.path)
        if route is not None:
            resource = self.cluster.types.find(route.group, route.version, route.plural)
            if resource is not None:
                return self._rest.answer(request, route, resource)
        answer = endpoints.respond(request) or self._documents.respond(request)
        if answer is None:
            raise no_such_path(request.path)
        return answer


def _durability(journal: "Journal | None", store: ObjectStore) -> "Durability | None":
    if journal is None:
        return None
    from karpool_fleet.apiserver.storage.durability import Durability

    return Durability(journal, store)
