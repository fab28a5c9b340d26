"""The reading half of a client: single objects, paged lists, and watches.

All pages of a list show the same moment. A malformed object in a list is reported and skipped. Retries,
limits and errors are those of `rest`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar, overload

from karpool.kube.api import decoding
from karpool.kube.api.decoding import Object, ObjectPage, Report, Undecodable, log_bad_objects
from karpool.kube.clock import Clock, RealClock
from karpool.kube.errors import Gone, KubeError, ServerFault
from karpool.kube.transport import backoff
from karpool.kube.transport.backoff import Chance
from karpool.kube.transport.rate_limit import TokenBucket
from karpool.kube.transport.rest import (
    DEFAULT_RETRY,
    STEADY_PACE,
    USER_AGENT,
    Observe,
    RestClient,
    RetryPolicy,
    WatchPace,
)
from karpool.kube.transport_interface import Transport
from karpool.kube.watch.watch import Watch, WatchEvent
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions

T = TypeVar("T")

# 500 is what client-go's pager uses. One big page decodes no faster and takes
# 639 MiB instead of 274 for 50,000 pods.
PAGE_SIZE = 500
TIMEOUT = 30.0
LIST_TIMEOUT = 60.0
EXPIRED_LIST_TRIES = 3
REQUEST_STEPS = 3  # turns of the event loop until a request is sent


class ApiReader:
    """Reads one API server.

    `name` is the cluster's name in messages; `timeout` limits each request, lists too.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock | None = None,
        *,
        name: str = "",
        qps: float | None = 50.0,
        burst: int = 100,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout: float | None = None,
        user_agent: str = USER_AGENT,
        field_manager: str = "karpool",
        chance: Chance = backoff.chance,
        observe: Observe | None = None,
        report: Report = log_bad_objects,
        pace: WatchPace = STEADY_PACE,
    ) -> None:
        self.name = name
        self.clock = clock or RealClock()
        self.chance = chance
        self.report = report
        self._list_timeout = timeout or LIST_TIMEOUT
        self._field_manager = field_manager  # field manager of the writing half
        self.rest = RestClient(
            transport,
            self.clock,
            limiter=TokenBucket(qps, burst, self.clock) if qps else None,
            retry=retry,
            timeout=timeout or TIMEOUT,
            user_agent=user_agent,
            chance=chance,
            observe=observe,
            pace=pace,
        )

    async def close(self) -> None:
        await self.rest.transport.close()

    async def server_version(self) -> str:
        """`gitVersion` of the server, as in "v1.34.1"."""
        return str((await self.get_path("/version")).get("gitVersion", "unknown"))

    async def get_path(self, path: str) -> Object:
        """Return any JSON document of the server, such as discovery or the version."""
        return self._decode("GET", path, (await self.rest.call("GET", path)).body, dict)

    @overload
    async def get(
        self, resource: ApiResource, name: str, *, namespace: str | None = None, subresource: str = ""
    ) -> Object: ...
    @overload
    async def get(
        self,
        resource: ApiResource,
        name: str,
        *,
        namespace: str | None = None,
        subresource: str = "",
        into: type[T],
    ) -> T: ...
    async def get(
        self,
        resource: ApiResource,
        name: str,
        *,
        namespace: str | None = None,
        subresource: str = "",
        into: type[Any] = dict,
    ) -> Any:
        path = resource.item(name, namespace, subresource)
        return self._decode("GET", path, (await self.rest.call("GET", path)).body, into)

    @overload
    def pages(
        self, resource: ApiResource, selection: ListOptions = ALL, *, page_size: int = PAGE_SIZE
    ) -> AsyncGenerator[ObjectPage[Object], None]: ...
    @overload
    def pages(
        self,
        resource: ApiResource,
        selection: ListOptions = ALL,
        *,
        page_size: int = PAGE_SIZE,
        into: type[T],
    ) -> AsyncGenerator[ObjectPage[T], None]: ...
    async def pages(
        self,
        resource: ApiResource,
        selection: ListOptions = ALL,
        *,
        page_size: int = PAGE_SIZE,
        into: type[Any] = dict,
    ) -> AsyncGenerator[ObjectPage[Any], None]:
        """Yield all objects as of one moment, page by page; `page_size` 0 asks for a single page.

        Raises Gone when the continue token expires; the caller then starts again.
        """
        path = resource.collection(selection.namespace)

        async def page_after(token: str) -> ObjectPage[Any]:
            query = selection.query()
            if page_size:
                query.append(("limit", str(page_size)))
            if token:
                query.append(("continue", token))
            answer = await self.rest.call("GET", path, query=query, timeout=self._list_timeout)
            try:
                return decoding.decode_page(answer.body, into, resource)
            except Undecodable as error:
                raise _unreadable("GET", path, error) from None

        page = await page_after("")
        while token := page.continue_token:
            # Request the next page while this one is decoded: for 50,000 pods the server and the client work
            # about equally long.
            next_page = asyncio.create_task(page_after(token))
            try:
                for _ in range(REQUEST_STEPS):
                    await asyncio.sleep(0)
                self._report_bad(page)
                yield page
                page = await next_page
            finally:
                if not next_page.cancel() and not next_page.cancelled():
                    next_page.exception()  # retrieve the error, so that asyncio does not warn about it
            if page.continue_token == token:
                raise ServerFault(
                    f"GET {path}", 500, message="the list continues with the same page for ever"
                )
        self._report_bad(page)
        yield page

    def _report_bad(self, page: ObjectPage[Any]) -> None:
        if page.bad:
            self.report(page.bad)

    @overload
    async def list(self, resource: ApiResource, selection: ListOptions = ALL) -> ObjectPage[Object]: ...
    @overload
    async def list(
        self,
        resource: ApiResource,
        selection: ListOptions = ALL,
        *,
        into: type[T],
        progress: Callable[[int], None] | None = None,
    ) -> ObjectPage[T]: ...
    async def list(
        self,
        resource: ApiResource,
        selection: ListOptions = ALL,
        *,
        into: type[Any] = dict,
        progress: Callable[[int], None] | None = None,
    ) -> ObjectPage[Any]:
        """All pages as one. A list that expires half-way is started again, at last in one piece.
        `progress` hears after every page how many there are."""
        for attempt in range(1, EXPIRED_LIST_TRIES + 1):
            whole: ObjectPage[Any] = ObjectPage([])
            size = PAGE_SIZE if attempt < EXPIRED_LIST_TRIES else 0
            try:
                async for page in self.pages(resource, selection, page_size=size, into=into):
                    whole.items.extend(page.items)
                    whole.bad.extend(page.bad)
                    if progress is not None:
                        progress(len(whole.items))
                    version = page.resource_version
                return ObjectPage(whole.items, version, "", None, whole.bad)
            except Gone:
                if attempt == EXPIRED_LIST_TRIES:
                    raise
        raise AssertionError("unreachable")

    async def watch(
        self,
        resource: ApiResource,
        version: str,
        selection: ListOptions = ALL,
        *,
        into: type[T],
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield the changes after `version`, without bookmarks and without end.

        It raises what `watch.Watch` does.
        """
        watch = Watch(
            self.rest,
            resource,
            version,
            into,
            selection=selection,
            report=self.report,
        )
        async with aclosing(watch.batches()) as batches:
            async for batch in batches:
                for event in batch:
                    if event.type != "BOOKMARK":
                        yield event

    def _decode(self, method: str, path: str, body: bytes, into: type[T]) -> T:
        try:
            return decoding.decode(body, into)
        except Undecodable as error:
            raise _unreadable(method, path, error) from None


def _unreadable(method: str, path: str, error: Undecodable) -> KubeError:
    return ServerFault(
        f"{method} {path}", 500, reason="Unreadable", message=f"the answer is unusable: {error}"
    )
