"""Decodes request bodies: JSON, YAML or protobuf.

Every body becomes a JSON object or a 4xx that says what is wrong with it.
"""

from typing import Any

import msgspec
import yaml

from karpool.kube.transport_interface import HttpRequest
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.serve.protobuf import CONTENT_TYPE as PROTOBUF
from karpool_fleet.apiserver.serve.protobuf import decode_protobuf
from karpool_fleet.apiserver.serve.status import bad_request, unsupported_media_type

_YAML = ("application/yaml", "application/apply-patch+yaml")
_MAX_YAML = 1024 * 1024  # the YAML reader is some 100 times slower than the JSON one


def content_type(request: HttpRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def decode_object(request: HttpRequest) -> Object:
    kind = content_type(request) or "application/json"
    if kind == PROTOBUF:
        return decode_protobuf(request.body)
    if kind not in ("application/json", "application/yaml"):
        raise unsupported_media_type(kind[:80], ("application/json", "application/yaml"))
    decoded = decode(request.body, kind)
    if not isinstance(decoded, dict):
        raise bad_request("the body must be one JSON object")
    return decoded


def decode(body: bytes, kind: str) -> Any:
    if not body:
        raise bad_request("the body is empty; send the object as JSON")
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        if kind not in _YAML:
            raise bad_request(f"the body is not JSON: {error}") from None
    if len(body) > _MAX_YAML:
        raise bad_request("a YAML body may be at most 1 MiB; send JSON")
    try:
        # Round trip through JSON: dates and non-string keys have no place in an object.
        return msgspec.json.decode(msgspec.json.encode(yaml.load(body, _PlainLoader)))  # noqa: S506
    except (yaml.YAMLError, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise bad_request(f"the body is neither JSON nor YAML: {str(error)[:200]}") from None


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without timestamps and without aliases (which can multiply a small body)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not accepted")
        return super().compose_node(parent, index)


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
