"""The verbs on resources: which method on which path does what.

Everything here is synchronous; a request is one step from the state it reads to
the state it leaves.
"""

from karpool.fleet.apiserver import deleting, subresources, writing
from karpool.fleet.apiserver.bodies import decode_object
from karpool.fleet.apiserver.cluster import Cluster
from karpool.fleet.apiserver.patching import APPLY, patched, read_patch
from karpool.fleet.apiserver.reading import HeldLists, find, list_objects
from karpool.fleet.apiserver.record import Record
from karpool.fleet.apiserver.rendering import Form, Renderer, negotiate
from karpool.fleet.apiserver.routes import Query, Route
from karpool.fleet.apiserver.selectors import Selection, parse_selection
from karpool.fleet.apiserver.status import (
    JSON,
    bad_request,
    details_of,
    method_not_allowed,
    no_such_path,
    success,
)
from karpool.fleet.apiserver.types import ResourceType
from karpool.fleet.apiserver.watching import BeforeSend, WatchStream
from karpool.fleet.apiserver.writing import Intent
from karpool.kube.transport import Request, Response

# These answer a delete with the object; the others with a Status.
_RETURN_DELETED = frozenset(
    {
        "pods",
        "services",
        "serviceaccounts",
        "podtemplates",
        "persistentvolumes",
        "persistentvolumeclaims",
        "resourcequotas",
    }
)
_MANAGER_MAX = 128


class Rest:
    def __init__(self, cluster: Cluster, before_send: BeforeSend | None) -> None:
        self._cluster = cluster
        self._held = HeldLists()
        self._before_send = before_send

    def answer(self, request: Request, route: Route, resource: ResourceType) -> Response | WatchStream:
        if not resource.namespaced and route.namespace is not None:
            raise no_such_path(request.path)
        call = Call(self._cluster, request, route, resource)
        if route.subresource:
            return subresources.answer(self._cluster, call)
        if not route.name:
            return self._on_collection(call)
        if resource.namespaced and route.namespace is None:
            raise no_such_path(request.path)
        match request.method:
            case "GET":
                return self._get(call)
            case "PUT":
                return call.reply(_replace(self._cluster, call))
            case "PATCH":
                record, created = apply_patch(self._cluster, call)
                return call.reply(record, code=201 if created else 200)
            case "DELETE":
                return self._delete(call)
        raise method_not_allowed(request.method, request.path)

    def _on_collection(self, call: "Call") -> Response | WatchStream:
        method = call.request.method
        if method == "GET":
            selection = call.selection()
            if call.query.flag("watch"):
                return WatchStream(self._cluster, call.renderer(), selection, call.query, self._before_send)
            body = list_objects(self._cluster, self._held, selection, call.query, call.renderer())
            return Response(200, JSON, body)
        if call.resource.namespaced and call.route.namespace is None:
            raise method_not_allowed(method, f"{call.request.path} (name a namespace)")
        match method:
            case "POST":
                obj = decode_object(call.request)
                return call.reply(writing.create(self._cluster, call.intent(), obj), code=201)
            case "DELETE":
                return self._delete_collection(call)
        raise method_not_allowed(method, call.request.path)

    def _get(self, call: "Call") -> Response | WatchStream:
        if call.query.flag("watch"):
            named = f"metadata.name={call.route.name}"
            return WatchStream(
                self._cluster, call.renderer(), call.selection(named), call.query, self._before_send
            )
        return call.reply(call.record())

    def _delete(self, call: "Call") -> Response:
        options = deleting.read_options(call.request, call.query, dry_run=call.dry_run())
        deletion = deleting.delete(self._cluster, call.resource, call.record(), options)
        if deletion.gone and call.resource.group_resource not in _RETURN_DELETED:
            return success(details_of(call.resource, call.route.name, uid=deletion.record.uid))
        return call.reply(deletion.record)

    def _delete_collection(self, call: "Call") -> Response:
        options = deleting.read_options(call.request, call.query, dry_run=call.dry_run())
        selection = call.selection()
        chosen = [
            record
            for record in selection.candidates(self._cluster.collection(call.resource))
            if selection.matches(record)
        ]
        last = [deleting.delete(self._cluster, call.resource, record, options).record for record in chosen]
        version = {"resourceVersion": str(self._cluster.store.version)}
        return Response(200, JSON, call.renderer().many(last, version))


class Call:
    """One request, and the readings of it that several verbs share."""

    def __init__(self, cluster: Cluster, request: Request, route: Route, resource: ResourceType) -> None:
        self.cluster = cluster
        self.request = request
        self.route = route
        self.resource = resource
        self.query = Query(request.query)
        self.namespace = route.namespace or ""
        self.warnings: list[str] = []

    def record(self) -> Record:
        return find(self.cluster, self.resource, self.namespace, self.route.name)

    def selection(self, fields: str = "") -> Selection:
        return parse_selection(
            self.cluster.collection(self.resource),
            self.route.namespace if self.resource.namespaced else "",
            self.query.text("labelSelector"),
            ",".join(part for part in (self.query.text("fieldSelector"), fields) if part),
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
            self.warnings,
        )

    def renderer(self) -> Renderer:
        form = negotiate(self.request.headers.get("accept", ""))
        include = ""
        if form is Form.TABLE:
            include = self.query.choice("includeObject", "None", "Metadata", "Object")
        return Renderer(self.resource, form, now=self.cluster.clock.now(), include_object=include)

    def reply(self, record: Record, *, code: int = 200) -> Response:
        headers = JSON
        if self.warnings:
            headers = JSON | {"warning": ", ".join(map(_warning, self.warnings[:20]))}
        return Response(code, headers, self.renderer().one(record))


def _warning(text: str) -> str:
    printable = "".join(c if c.isprintable() and c.isascii() else "?" for c in text[:500])
    return '299 - "' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _replace(cluster: Cluster, call: Call) -> Record:
    return writing.update(cluster, call.intent(), call.record(), decode_object(call.request))


def apply_patch(cluster: Cluster, call: Call) -> tuple[Record, bool]:
    """The object after the patch, and whether it is new."""
    kind, patch = read_patch(call.request, call.resource)
    intent = call.intent()
    if kind == APPLY:
        raise bad_request("server-side apply is not available")
    record = call.record()
    doc = record.object()
    doc["apiVersion"] = call.resource.api_version
    new = patched(kind, doc, patch, call.resource)
    return writing.update(cluster, intent, record, new), False
