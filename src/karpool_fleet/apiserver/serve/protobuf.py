"""Decodes the protobuf form of built-in objects that Go clients send.

Typed Go clients, including kubectl, write protobuf by default and accept JSON, so decoding is enough. The
result is the JSON form of the same object: zero values that JSON omits are omitted, and Go's embedded structs
are merged into their parents. Field numbers come from a file of facts, see `tools/build_protobuf_fields.py`.
Every length is checked against the body.
"""

import base64
import gzip
import struct
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from karpool.model.kubernetes.times import rfc3339, rfc3339_micro
from karpool_fleet.apiserver.kinds.builtin import definition_name
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.serve.status import ApiStatusError, bad_request

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_META = "k8s.io.apimachinery.pkg.apis.meta.v1"
_MAX_DEPTH = 64


class _Malformed(ValueError):
    pass


class _Field(NamedTuple):
    name: str
    kind: str  # s string, y bytes, b bool, i signed, u unsigned, d double, f float, m message
    repeated: bool
    drop_zero: bool
    inline: bool
    message: str
    is_map: bool


def decode_protobuf(body: bytes) -> Object:
    """Return the object in an envelope of type and bytes; raises StatusError 400 or 415."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not Kubernetes protobuf: it does not begin with its four magic bytes")
    try:
        envelope = dict(_wire(body[len(_MAGIC) :]))
        type_meta = dict(_wire(_bytes(envelope.get(1, b""))))
        api_version, kind = _text(type_meta.get(1, b"")), _text(type_meta.get(2, b""))
        message = _message_name(api_version, kind)
        decoded = _message(_bytes(envelope.get(2, b"")), message, 0)
    except (_Malformed, UnicodeDecodeError, struct.error, OverflowError) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from None
    return {"kind": kind, "apiVersion": api_version, **decoded}


def _message_name(api_version: str, kind: str) -> str:
    if kind == "DeleteOptions":  # every group has it
        return f"{_META}.{kind}"
    group, _, version = api_version.rpartition("/")
    try:
        name = definition_name(group, version, kind).replace("io.k8s.", "k8s.io.", 1)
    except KeyError:
        name = ""
    if name not in _tables():
        raise ApiStatusError(
            415,
            "UnsupportedMediaType",
            f"{kind[:80]} of {api_version[:80]} is not known in protobuf; send application/json",
        )
    return name


@cache
def _tables() -> dict[str, dict[int, _Field]]:
    packed = (
        resources.files("karpool_fleet.apiserver").joinpath("data", "protobuf_fields.json.gz").read_bytes()
    )
    rows: dict[str, list[list[Any]]] = msgspec.json.decode(gzip.decompress(packed))
    return {name: {row[0]: _field(row) for row in fields} for name, fields in rows.items()}


def _field(row: list[Any]) -> _Field:
    _, name, kind, flags, *rest = row
    message = rest[0] if rest else ""
    # Map entries are messages named after their field: `ConfigMap.DataEntry`.
    is_map = "r" in flags and message.rpartition(".")[2] == f"{name[:1].upper()}{name[1:]}Entry"
    return _Field(name, kind, "r" in flags, "z" in flags, "i" in flags, message, is_map)


def _wire(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and raw values: ints for varints, bytes for all else."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case other:
                raise _Malformed(f"wire type {other} is not used")
        if size > end - at:
            raise _Malformed("it ends in the middle of a field")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Malformed("it ends in the middle of a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise _Malformed("a number stands where bytes are expected")
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()


def _message(data: bytes, name: str, depth: int) -> Object:
    if depth > _MAX_DEPTH:
        raise _Malformed("it is nested too deeply")
    fields = _tables()[name]
    result: Object = {}
    for number, raw in _wire(data):
        field = fields.get(number)
        if field is None:
            continue  # unknown fields of a newer client are dropped
        if field.is_map:
            key, value = _map_entry(_bytes(raw), field.message, depth)
            result.setdefault(field.name, {})[key] = value
            continue
        if field.repeated:
            result.setdefault(field.name, []).extend(_items(field, raw, depth))
            continue
        value = _value(field, raw, depth)
        if field.inline:
            result.update(value)
        elif value is not None and not (field.drop_zero and not value):
            result[field.name] = value
    return result


def _items(field: _Field, raw: int | bytes, depth: int) -> list[Any]:
    if field.kind in "iub" and isinstance(raw, bytes):  # packed
        items, at = [], 0
        while at < len(raw):
            number, at = _varint(raw, at)
            items.append(_value(field, number, depth))
        return items
    return [_value(field, raw, depth)]


def _map_entry(data: bytes, name: str, depth: int) -> tuple[str, Any]:
    fields = _tables()[name]
    entry = dict(_wire(data))
    key = _text(entry.get(1, b""))
    value = fields[2]
    empty: int | bytes = 0 if value.kind in "iub" else b""
    return key, _value(value, entry.get(2, empty), depth)


def _value(field: _Field, raw: int | bytes, depth: int) -> Any:
    match field.kind:
        case "s":
            return _text(raw)
        case "y":
            return base64.b64encode(_bytes(raw)).decode()
        case "m":
            special = _SPECIAL.get(field.message.rpartition(".")[2])
            if special is not None and field.message.startswith("k8s.io.api"):
                return special(_bytes(raw))
            return _message(_bytes(raw), field.message, depth + 1)
        case "d":
            return struct.unpack("<d", _bytes(raw))[0]
        case "f":
            return struct.unpack("<f", _bytes(raw))[0]
    if isinstance(raw, bytes):
        raise _Malformed(f"{field.name} must be a number")
    if field.kind == "b":
        return bool(raw)
    return raw - (1 << 64) if field.kind == "i" and raw >= 1 << 63 else raw


def _signed(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise _Malformed("bytes stand where a number is expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def _time(write: Callable[[float], str]) -> Callable[[bytes], str | None]:
    def read(data: bytes) -> str | None:
        parts = dict(_wire(data))
        if not parts:
            return None
        seconds, nanos = _signed(parts.get(1, 0)), _signed(parts.get(2, 0))
        try:
            return write(seconds + nanos / 1e9)
        except (ValueError, OSError):
            raise _Malformed(f"{seconds} seconds is not a time") from None

    return read


def _int_or_string(data: bytes) -> int | str:
    parts = dict(_wire(data))
    return _text(parts.get(3, b"")) if parts.get(1) else _signed(parts.get(2, 0))


def _json(data: bytes) -> Any:
    raw = _bytes(dict(_wire(data)).get(1, b""))
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, RecursionError):
        raise _Malformed("an embedded JSON value is not JSON") from None


def _duration(data: bytes) -> str:
    return f"{_signed(dict(_wire(data)).get(1, 0)) / 1e9:g}s"


def _list(data: bytes) -> list[str]:
    return [_text(value) for number, value in _wire(data) if number == 1]


_SPECIAL: dict[str, Callable[[bytes], Any]] = {
    "Time": _time(rfc3339),
    "MicroTime": _time(rfc3339_micro),
    "Quantity": lambda data: _text(dict(_wire(data)).get(1, b"0")),
    "IntOrString": _int_or_string,
    "Duration": _duration,
    "FieldsV1": _json,
    "RawExtension": _json,
    "JSON": _json,
    "ExtraValue": _list,
}
