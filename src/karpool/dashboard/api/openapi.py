"""The OpenAPI document of the JSON API, built from the table of endpoints and their structs."""

from functools import cache
from typing import Any

import msgspec

from karpool import __version__
from karpool.dashboard.api.endpoints import ENDPOINTS, NAME_MAX, PREFIX, Endpoint
from karpool.dashboard.api.views import ProblemDetails

STREAM = f"{PREFIX}/stream"
_REFERENCE = "#/components/schemas/{name}"


@cache
def document() -> bytes:
    """Return the OpenAPI 3.1 document as JSON."""
    types = [*dict.fromkeys(endpoint.answers for endpoint in ENDPOINTS), ProblemDetails]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    references = dict(zip(types, schemas, strict=True))
    content: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Karpool dashboard",
            "version": __version__,
            "description": "Read-only. Amounts are in Kubernetes units, money in USD per hour, "
            "times in seconds since the epoch.",
        },
        "paths": {endpoint.path: {"get": _operation(endpoint, references)} for endpoint in ENDPOINTS}
        | {STREAM: {"get": _stream()}},
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # On loopback no token is needed.
        "security": [{}, {"token": []}],
    }
    return msgspec.json.encode(content)


def _operation(endpoint: Endpoint, references: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": references[ProblemDetails]}}
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.about,
        "responses": {
            "200": {
                "description": "the answer",
                "content": {"application/json": {"schema": references[endpoint.answers]}},
            },
            "304": {"description": "nothing changed since the ETag that was given"},
            "default": {"description": "why there is no answer", "content": problem},
        },
    }
    if endpoint.parameters:
        operation["parameters"] = [
            {
                "name": parameter.name,
                "in": "path" if parameter.in_path else "query",
                "required": parameter.in_path,
                "description": parameter.about,
                "schema": {"type": "string", "maxLength": NAME_MAX},
            }
            for parameter in endpoint.parameters
        ]
    return operation


def _stream() -> dict[str, Any]:
    return {
        "operationId": "followVersions",
        "summary": "Server-sent events: `versions`, a number for each area that grows when it changes.",
        "responses": {"200": {"description": "until closed", "content": {"text/event-stream": {}}}},
    }
