"""Dispatches requests on resources to verbs, by method and path.

Everything here is synchronous: a request is one step from the state that it reads to the state that it
leaves.
"""

from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.types import ResourceType
from karpool_fleet.apiserver.serve.bodies import decode_object
from karpool_fleet.apiserver.serve.call import Call
from karpool_fleet.apiserver.serve.routes import Route
from karpool_fleet.apiserver.serve.status import JSON, details_of, method_not_allowed, no_such_path, success
from karpool_fleet.apiserver.verbs import create_and_update, deletion, reviews, subresources
from karpool_fleet.apiserver.verbs.get_and_list import HeldLists, list_objects
from karpool_fleet.apiserver.verbs.put_and_patch import apply_patch, replace
from karpool_fleet.apiserver.verbs.watch import BeforeSend, WatchStream

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


class ResourceVerbs:
    def __init__(self, cluster: ServedCluster, before_send: BeforeSend | None) -> None:
        self._cluster = cluster
        self._held = HeldLists()
        self._before_send = before_send

    def answer(
        self, request: HttpRequest, route: Route, resource: ResourceType
    ) -> HttpResponse | WatchStream:
        if not resource.namespaced and route.namespace is not None:
            raise no_such_path(request.path)
        call = Call(self._cluster, request, route, resource)
        if route.subresource:
            return subresources.answer(self._cluster, call)
        if resource.group_resource in reviews.ANSWERS:
            return reviews.answer(self._cluster, call)
        if resource.group_resource == "bindings":
            return subresources.create_binding(self._cluster, call)
        if not route.name:
            return self._on_collection(call)
        if resource.namespaced and route.namespace is None:
            raise no_such_path(request.path)
        match request.method:
            case "GET":
                return self._get(call)
            case "PUT":
                return call.reply(replace(self._cluster, call))
            case "PATCH":
                record, created = apply_patch(self._cluster, call)
                return call.reply(record, code=201 if created else 200)
            case "DELETE":
                return self._delete(call)
        raise method_not_allowed(request.method, request.path)

    def _on_collection(self, call: Call) -> HttpResponse | WatchStream:
        method = call.request.method
        if method == "GET":
            selection = call.selection()
            if call.query.flag("watch"):
                return WatchStream(self._cluster, call.renderer(), selection, call.query, self._before_send)
            body = list_objects(self._cluster, self._held, selection, call.query, call.renderer())
            return HttpResponse(200, JSON, body)
        if call.resource.namespaced and call.route.namespace is None:
            raise method_not_allowed(method, f"{call.request.path} (name a namespace)")
        match method:
            case "POST":
                obj = decode_object(call.request)
                return call.reply(create_and_update.create(self._cluster, call.intent(), obj), code=201)
            case "DELETE":
                return self._delete_collection(call)
        raise method_not_allowed(method, call.request.path)

    def _get(self, call: Call) -> HttpResponse | WatchStream:
        if call.query.flag("watch"):
            named = f"metadata.name={call.route.name}"
            return WatchStream(
                self._cluster, call.renderer(), call.selection(named), call.query, self._before_send
            )
        return call.reply(call.record())

    def _delete(self, call: Call) -> HttpResponse:
        options = deletion.read_options(call.request, call.query, dry_run=call.dry_run())
        outcome = deletion.delete(self._cluster, call.resource, call.record(), options)
        if outcome.gone and call.resource.group_resource not in _RETURN_DELETED:
            return success(details_of(call.resource, call.route.name, uid=outcome.record.uid))
        return call.reply(outcome.record)

    def _delete_collection(self, call: Call) -> HttpResponse:
        options = deletion.read_options(call.request, call.query, dry_run=call.dry_run())
        selection = call.selection()
        chosen = [
            record
            for record in selection.candidates(self._cluster.collection(call.resource))
            if selection.matches(record)
        ]
        last = [deletion.delete(self._cluster, call.resource, record, options).record for record in chosen]
        version = {"resourceVersion": str(self._cluster.store.version)}
        return HttpResponse(200, JSON, call.renderer().many(last, version))
