"""The OpenAPI v2 document as protobuf, the only form that kubectl reads.

Messages and field numbers are those of gnostic's `openapi.v2` package, as far as our document uses them.
Values of any type are YAML text inside the message; JSON is YAML.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from karpool_fleet.apiserver.objects.types import Object

# The requested media type, and that of the answer: "@" is not allowed in a media type, and
# Go's parser refuses it.
ACCEPTED = (
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
)
CONTENT_TYPE = ACCEPTED[1]


def encode_document(document: Object) -> bytes:
    return b"".join(
        (
            _text(1, document["swagger"]),
            _bytes(2, _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])),
            _bytes(8, _named(2, document["paths"], _path_item)),
            _bytes(9, _named(1, document["definitions"], _schema)),
        )
    )


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _integer(field: int, number: Any) -> bytes:
    return _varint(field << 3) + _varint(int(number))


def _double(field: int, number: Any) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _any(field: int, value: Any) -> bytes:
    return _bytes(field, _text(2, msgspec.json.encode(value).decode() + "\n"))


def _named(field: int, values: Mapping[str, Any], encode: Callable[[Any], bytes]) -> bytes:
    """repeated Named*: a name and a message."""
    return b"".join(
        _bytes(field, _text(1, name) + _bytes(2, encode(value))) for name, value in values.items()
    )


def _extensions(field: int, values: Mapping[str, Any]) -> bytes:
    return b"".join(
        _bytes(field, _text(1, name) + _any(2, value))
        for name, value in values.items()
        if name.startswith("x-")
    )


def _schemas(schema: Any) -> bytes:
    return _bytes(1, _schema(schema))


def _additional(value: Any) -> bytes:
    return _integer(2, value) if isinstance(value, bool) else _bytes(1, _schema(value))


def _properties(values: Mapping[str, Any]) -> bytes:
    return _named(1, values, _schema)


# Keyword: field number and encoding of its value.
_SCHEMA: dict[str, Callable[[Any], bytes]] = {
    "$ref": lambda value: _text(1, value),
    "format": lambda value: _text(2, value),
    "title": lambda value: _text(3, value),
    "description": lambda value: _text(4, value),
    "default": lambda value: _any(5, value),
    "multipleOf": lambda value: _double(6, value),
    "maximum": lambda value: _double(7, value),
    "exclusiveMaximum": lambda value: _integer(8, value),
    "minimum": lambda value: _double(9, value),
    "exclusiveMinimum": lambda value: _integer(10, value),
    "maxLength": lambda value: _integer(11, value),
    "minLength": lambda value: _integer(12, value),
    "pattern": lambda value: _text(13, value),
    "maxItems": lambda value: _integer(14, value),
    "minItems": lambda value: _integer(15, value),
    "uniqueItems": lambda value: _integer(16, value),
    "maxProperties": lambda value: _integer(17, value),
    "minProperties": lambda value: _integer(18, value),
    "required": lambda value: b"".join(_text(19, name) for name in value),
    "enum": lambda value: b"".join(_any(20, item) for item in value),
    "additionalProperties": lambda value: _bytes(21, _additional(value)),
    "type": lambda value: _bytes(22, _text(1, value)),
    "items": lambda value: _bytes(23, _schemas(value)),
    "allOf": lambda value: b"".join(_bytes(24, _schema(item)) for item in value),
    "properties": lambda value: _bytes(25, _properties(value)),
}


def _schema(schema: Mapping[str, Any]) -> bytes:
    fields = [encode(schema[key]) for key, encode in _SCHEMA.items() if key in schema]
    return b"".join(fields) + _extensions(31, schema)


_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}


def _path_item(item: Mapping[str, Any]) -> bytes:
    return b"".join(
        _bytes(number, _operation(item[name])) for name, number in _METHODS.items() if name in item
    )


def _operation(operation: Mapping[str, Any]) -> bytes:
    parameters = b"".join(_bytes(8, _query_parameter(item)) for item in operation["parameters"])
    responses = b"".join(
        _bytes(1, _text(1, code) + _bytes(2, _bytes(1, _text(1, answer["description"]))))
        for code, answer in operation["responses"].items()
    )
    return _text(5, operation["operationId"]) + parameters + _bytes(9, responses) + _extensions(13, operation)


def _query_parameter(parameter: Mapping[str, Any]) -> bytes:
    """ParametersItem > Parameter > NonBodyParameter > QueryParameterSubSchema."""
    query = _text(2, parameter["in"]) + _text(4, parameter["name"]) + _text(6, parameter["type"])
    return _bytes(1, _bytes(2, _bytes(3, query)))
