"""Serves discovery and OpenAPI documents, cached until the registry changes.

Each document is built on first demand and has an entity tag, so that repeated requests get 304. For other
paths `respond` returns None.
"""

import msgspec

from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.documents import discovery, openapi, openapi_protobuf
from karpool_fleet.apiserver.kinds.builtin import review_types
from karpool_fleet.apiserver.kinds.registry import Registry
from karpool_fleet.apiserver.objects.types import Object, ResourceType

_JSON = "application/json"


class Documents:
    """`address` is host:port as clients reach the server."""

    def __init__(self, registry: Registry, address: str = "127.0.0.1") -> None:
        self._registry = registry
        self._address = address
        self._reviews = review_types()
        self._types: list[ResourceType] = []
        self._generation = -1
        self._made: dict[tuple[str, str], HttpResponse] = {}

    def respond(self, request: HttpRequest) -> HttpResponse | None:
        """The document at the request's path, 304 when the client has it; None for other paths."""
        path = request.path.rstrip("/")
        if request.method not in ("GET", "HEAD") or not _is_document(path):
            return None
        self._refresh()
        form = _form(path, request.headers.get("accept", ""))
        made = self._made.get((path, form)) or self._make(path, form)
        if made is None:
            return None
        self._made[path, form] = made
        if made.headers.get("etag") in _tags(request.headers.get("if-none-match", "")):
            return HttpResponse(304, {"etag": made.headers["etag"], "vary": "Accept"})
        return made

    def _refresh(self) -> None:
        if self._generation != self._registry.generation:
            self._generation = self._registry.generation
            registered = self._registry.all()
            identities = {(resource.group, resource.version, resource.plural) for resource in registered}
            missing = [r for r in self._reviews if (r.group, r.version, r.plural) not in identities]
            self._types = [*registered, *missing]
            self._made.clear()

    def _make(self, path: str, form: str) -> HttpResponse | None:
        types = self._types
        match path.strip("/").split("/"):
            case ["api" | "apis" as root] if form:
                document = discovery.aggregated(types, core=root == "api", version=form)
                return _response(document, discovery.aggregated_content_type(form))
            case ["api"]:
                return _response(discovery.api_versions(self._address))
            case ["apis"]:
                return _response(discovery.api_group_list(types))
            case ["apis", group]:
                return _response(discovery.api_group(types, group))
            case ["api", version]:
                return _response(discovery.api_resource_list(types, "", version))
            case ["apis", group, version]:
                return _response(discovery.api_resource_list(types, group, version))
            case ["openapi", "v2"]:
                document = openapi.v2_document(types)
                if form:
                    return _tagged(openapi_protobuf.encode_document(document), form)
                return _response(document)
            case ["openapi", "v3"]:
                return _response(openapi.v3_index(types, self._digests()))
            case ["openapi", "v3", *rest]:
                return _response(openapi.v3_document(types, "/".join(rest)))
        return None

    def _digests(self) -> dict[str, str]:
        documents = {}
        for path in openapi.group_version_paths(self._types):
            document = openapi.v3_document(self._types, path)
            documents[path] = openapi.digest(msgspec.json.encode(document))
        return documents


def _is_document(path: str) -> bool:
    match path.strip("/").split("/"):
        case ["api" | "apis"] | ["api", _] | ["apis", _] | ["apis", _, _]:
            return True
        case ["openapi", "v2"] | ["openapi", "v3", *_]:
            return True
    return False


def _form(path: str, accept: str) -> str:
    """Return what the Accept header changes about a document: "" for plain JSON."""
    if path in ("/api", "/apis"):
        return discovery.negotiate_aggregated(accept) or ""
    if path == "/openapi/v2":
        offers = [offer.split(";")[0].strip() for offer in accept.split(",")]
        asked = any(offer in openapi_protobuf.ACCEPTED for offer in offers)
        return openapi_protobuf.CONTENT_TYPE if asked else ""
    return ""


def _tags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]


def _response(document: Object | None, content_type: str = _JSON) -> HttpResponse | None:
    return None if document is None else _tagged(msgspec.json.encode(document), content_type)


def _tagged(body: bytes, content_type: str) -> HttpResponse:
    headers = {"content-type": content_type, "etag": f'"{openapi.digest(body)}"', "vary": "Accept"}
    return HttpResponse(200, headers, body)
