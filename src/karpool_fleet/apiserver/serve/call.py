"""One request on a resource, with accessors that several verbs share."""

from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.kinds.conversion import stored_fields
from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.types import ResourceType
from karpool_fleet.apiserver.serve.response_bodies import Form, Renderer, negotiate
from karpool_fleet.apiserver.serve.routes import Query, Route
from karpool_fleet.apiserver.serve.status import JSON, bad_request
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.create_and_update import Intent
from karpool_fleet.apiserver.verbs.get_and_list import find
from karpool_fleet.apiserver.verbs.selectors import StoredSelection, parse_selection

_MANAGER_MAX = 128


class Call:
    """One request on a resource, with accessors that several verbs share."""

    def __init__(
        self, cluster: ServedCluster, request: HttpRequest, route: Route, resource: ResourceType
    ) -> None:
        self.cluster = cluster
        self.request = request
        self.route = route
        self.resource = resource
        self.query = Query(request.query)
        self.namespace = route.namespace or ""
        self.warnings: list[str] = []

    def record(self) -> StoredObject:
        return find(self.cluster, self.resource, self.namespace, self.route.name)

    def selection(self, fields: str = "") -> StoredSelection:
        return parse_selection(
            self.cluster.collection(self.resource),
            self.route.namespace if self.resource.namespaced else "",
            self.query.text("labelSelector"),
            ",".join(filter(None, (stored_fields(self.resource, self.query.text("fieldSelector")), fields))),
        )

    def dry_run(self) -> bool:
        values = self.query.all("dryRun")
        if any(value not in ("", "All") for value in values):
            raise bad_request(f"dryRun={values[-1][:40]!r}: must be All")
        return "All" in values

    def intent(self) -> Intent:
        manager = self.query.text("fieldManager")
        if len(manager) > _MANAGER_MAX or not manager.isprintable():
            raise bad_request(f"fieldManager: must be at most {_MANAGER_MAX} printable characters")
        if not manager:
            manager = self.request.headers.get("user-agent", "").partition("/")[0][:_MANAGER_MAX]
        return Intent(
            self.resource,
            self.namespace,
            self.route.name,
            self.route.subresource,
            self.dry_run(),
            manager or "unknown",
            self.query.choice("fieldValidation", "Ignore", "Warn", "Strict") or "Warn",
            warnings=self.warnings,
        )

    def renderer(self) -> Renderer:
        form = negotiate(self.request.headers.get("accept", ""))
        include = ""
        if form in (Form.TABLE, Form.OLD_TABLE):
            include = self.query.choice("includeObject", "None", "Metadata", "Object")
        return Renderer(self.resource, form, now=self.cluster.clock.now(), include_object=include)

    def reply(self, record: StoredObject, *, code: int = 200) -> HttpResponse:
        headers = JSON
        if self.warnings:
            headers = JSON | {"warning": ", ".join(map(_warning, self.warnings[:20]))}
        return HttpResponse(code, headers, self.renderer().one(record))


def _warning(text: str) -> str:
    printable = "".join(c if c.isprintable() and c.isascii() else "?" for c in text[:500])
    return '299 - "' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'
