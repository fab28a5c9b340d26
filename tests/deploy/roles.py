"""RBAC as the API server decides it: what roles grant to an account, and whether a request is granted.

`Guard` goes between a component and an embedded server, which does not enforce roles itself: what is not
granted is answered with 403, and what is used is noted.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from karpool.kube.transport_interface import HttpRequest, HttpResponse, StreamResponse, Transport
from karpool_fleet.apiserver.serve import routes

Object = dict[str, Any]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Grant(NamedTuple):
    """One verb on one resource: everywhere or in one namespace, on all objects or on one name."""

    verb: str
    group: str
    resource: str  # with its subresource, as in pods/binding
    namespace: str = ""  # "" is everywhere
    name: str = ""  # "" is all

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        which = f" named {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}{which}{where}"


class Asked(NamedTuple):
    verb: str
    group: str
    resource: str
    namespace: str
    name: str


def grants(manifests: Iterable[Object], account: str) -> set[Grant]:
    """What the bindings in these manifests give to a service account."""
    listed = list(manifests)
    roles = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each["rules"]
        for each in listed
        if each["kind"] in ("Role", "ClusterRole")
    }
    found: set[Grant] = set()
    for each in listed:
        if not each["kind"].endswith("RoleBinding"):
            continue
        if not any(s["kind"] == "ServiceAccount" and s["name"] == account for s in each["subjects"]):
            continue
        namespace = each["metadata"].get("namespace", "")
        ref = each["roleRef"]
        for rule in roles[ref["kind"], namespace if ref["kind"] == "Role" else "", ref["name"]]:
            found.update(expand(rule, namespace))
    return found


def expand(rule: Object, namespace: str = "") -> Iterator[Grant]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames") or ("",):
                    yield Grant(verb, group, resource, namespace, name)


def asked(request: HttpRequest) -> Asked | None:
    """What is asked for; None for discovery, which everybody may read."""
    route = routes.parse(request.path)
    if route is None:
        return None
    query = dict(request.query)
    if request.method == "GET":
        verb = "get" if route.name else "watch" if query.get("watch") in ("1", "true") else "list"
    else:
        verb = _VERBS[request.method]
    name = route.name or ""
    selector = query.get("fieldSelector", "")
    if not name and selector.startswith("metadata.name=") and "," not in selector:
        name = selector.removeprefix("metadata.name=")  # so does the API server
    resource = f"{route.plural}/{route.subresource}" if route.subresource else route.plural
    return Asked(verb, route.group, resource, route.namespace or "", "" if verb == "create" else name)


def fits(grant: Grant, request: Asked) -> bool:
    return (
        grant[:3] == request[:3]
        and grant.namespace in ("", request.namespace)
        and grant.name in ("", request.name)
    )


@dataclass
class Guard:
    granted: set[Grant]
    used: set[Grant] = field(default_factory=set)
    refused: set[Asked] = field(default_factory=set)

    def allows(self, request: HttpRequest) -> bool:
        wanted = asked(request)
        if wanted is None:
            return True
        fitting = [grant for grant in self.granted if fits(grant, wanted)]
        self.used.update(fitting)
        if not fitting:
            self.refused.add(wanted)
        return bool(fitting)

    def not_served(self, request: HttpRequest) -> None:
        """Where a kind exists, whoever listed it goes on to watch it."""
        wanted = asked(request)
        if wanted is not None and wanted.verb == "list":
            watches = wanted._replace(verb="watch")
            self.used.update(grant for grant in self.granted if fits(grant, watches))

    def around(self, transport: Transport) -> Transport:
        return _Guarded(self, transport)


class _Refusal:
    status = 403

    def __init__(self, body: bytes) -> None:
        self.headers = {"content-type": "application/json"}
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body


class _Guarded:
    def __init__(self, guard: Guard, inner: Transport) -> None:
        self._guard, self._inner = guard, inner

    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        if self._guard.allows(request):
            answer = await self._inner.request(request, timeout=timeout)
            if answer.status == 404:
                self._guard.not_served(request)
            return answer
        return HttpResponse(403, {"content-type": "application/json"}, _forbidden(request))

    @asynccontextmanager
    async def stream(
        self, request: HttpRequest, *, timeout: float | None = None
    ) -> AsyncIterator[StreamResponse]:
        if not self._guard.allows(request):
            yield _Refusal(_forbidden(request))
            return
        async with self._inner.stream(request, timeout=timeout) as found:
            yield found

    async def close(self) -> None:
        await self._inner.close()


def _forbidden(request: HttpRequest) -> bytes:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Forbidden",
        "code": 403,
        "message": f"{asked(request)} is forbidden",
    }
    return msgspec.json.encode(status)
