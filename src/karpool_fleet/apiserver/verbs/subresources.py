"""Subresources: status, scale, binding, eviction and others."""

import msgspec

from karpool.kube.transport_interface import HttpResponse
from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.serve.bodies import decode_object
from karpool_fleet.apiserver.serve.call import Call
from karpool_fleet.apiserver.serve.status import (
    JSON,
    bad_request,
    method_not_allowed,
    no_such_path,
    not_implemented,
    success,
)
from karpool_fleet.apiserver.verbs import binding, eviction, scale
from karpool_fleet.apiserver.verbs.put_and_patch import APPLY, apply_patch, patched, read_patch, replace

# Parts of the object itself, read and written like it.
_VIEWS = frozenset({"status", "finalize", "ephemeralcontainers", "resize"})
_NEED_A_KUBELET = frozenset({"log", "exec", "attach", "portforward", "proxy"})


def answer(cluster: ServedCluster, call: Call) -> HttpResponse:
    name = call.route.subresource.partition("/")[0]
    served = name in call.resource.subresources
    if call.resource.namespaced and call.route.namespace is None:
        raise no_such_path(call.request.path)
    if name in _NEED_A_KUBELET and call.resource.group_resource in ("pods", "nodes", "services"):
        call.record()
        raise not_implemented(
            f"{call.resource.plural}/{name}: no container runs behind this server, there is nothing to reach"
        )
    if not served or "/" in call.route.subresource:
        raise no_such_path(call.request.path)
    if name in _VIEWS:
        return _view(cluster, call)
    match name, call.request.method:
        case "scale", "GET" | "PUT" | "PATCH":
            return _scale(cluster, call)
        case "binding", "POST":
            return _bind(cluster, call)
        case "eviction", "POST":
            record = call.record()
            eviction.evict(cluster, record, decode_object(call.request), dry_run=call.dry_run())
            return success(code=201)
    raise method_not_allowed(call.request.method, call.request.path)


def _view(cluster: ServedCluster, call: Call) -> HttpResponse:
    match call.request.method:
        case "GET":
            return call.reply(call.record())
        case "PUT":
            return call.reply(replace(cluster, call))
        case "PATCH":
            return call.reply(apply_patch(cluster, call)[0])
    raise method_not_allowed(call.request.method, call.request.path)


def _scale(cluster: ServedCluster, call: Call) -> HttpResponse:
    record = call.record()
    current = scale.read(call.resource, record.object())
    match call.request.method:
        case "PUT":
            scaled = decode_object(call.request)
        case "PATCH":
            kind, patch = read_patch(call.request, call.resource)
            if kind == APPLY:
                raise bad_request("a scale cannot be applied; use a merge patch of spec.replicas")
            scaled = patched(kind, current, patch, scale.SCALE)
        case _:
            return HttpResponse(200, JSON, msgspec.json.encode(current))
    changed = scale.write(cluster, call.intent(), record, scaled)
    return HttpResponse(200, JSON, msgspec.json.encode(scale.read(call.resource, changed.object())))


def _bind(cluster: ServedCluster, call: Call) -> HttpResponse:
    binding.bind(cluster, call.intent(), call.record(), decode_object(call.request))
    return success(code=201)


def create_binding(cluster: ServedCluster, call: Call) -> HttpResponse:
    """POST to `bindings`: the pod is named in the body."""
    if call.request.method != "POST" or call.route.name or call.route.namespace is None:
        raise method_not_allowed(call.request.method, call.request.path)
    body = decode_object(call.request)
    binding.bind_named(cluster, call.intent(), body)
    return success(code=201)
