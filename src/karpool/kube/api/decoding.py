"""Decodes answers of the API server into typed objects.

A type is a msgspec struct with a `metadata` field (see `model.meta`), or plain `dict`. A page is decoded in
one go. If that fails, its items are decoded one by one: a malformed object is reported and skipped, and the
others are kept.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import GenericAlias
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
import structlog

from karpool.model.kubernetes.api_resources import ApiResource, ObjectKey

T = TypeVar("T")
Object = dict[str, Any]

log = structlog.get_logger(__name__)


class ObjectIdentity(NamedTuple):
    key: ObjectKey
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class SkippedObject:
    """An object that was skipped, and why."""

    resource: str
    name: str  # as far as it could be read
    reason: str
    identity: "ObjectIdentity | None" = field(default=None, repr=False, compare=False)
    raw: bytes = field(default=b"", repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.resource} {self.name}: {self.reason}"


Report = Callable[[Sequence[SkippedObject]], None]


def log_bad_objects(bad: Sequence[SkippedObject]) -> None:
    """Log one line for all of them: a broken page must not flood the log."""
    log.warning("objects skipped", count=len(bad), resource=bad[0].resource, first=str(bad[0]))


@dataclass(frozen=True, slots=True)
class ObjectPage(Generic[T]):
    items: list[T]
    resource_version: str = ""
    continue_token: str = ""
    remaining: int | None = None
    bad: list[SkippedObject] = field(default_factory=list)


class Undecodable(Exception):
    """Not JSON, not the expected shape, or nested too deeply."""


class _ListMeta(msgspec.Struct):
    resource_version: str | None = msgspec.field(default=None, name="resourceVersion")
    continue_token: str | None = msgspec.field(default=None, name="continue")
    remaining: int | None = msgspec.field(default=None, name="remainingItemCount")


class _Meta(msgspec.Struct):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = msgspec.field(default=None, name="resourceVersion")


class _OnlyMeta(msgspec.Struct):
    metadata: _Meta | None = None


_ONLY_META = msgspec.json.Decoder(_OnlyMeta)


@cache
def _decoder(into: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(into)


@cache
def _page_decoder(into: type) -> msgspec.json.Decoder[Any]:
    items = GenericAlias(list, (into,)) | None
    fields: Iterable[Any] = [("metadata", _ListMeta | None, None), ("items", items, None)]
    return msgspec.json.Decoder(msgspec.defstruct("Listing", fields))


def decode(body: bytes | msgspec.Raw, into: type[T]) -> T:
    """Decode a whole body. Raises Undecodable."""
    try:
        value: T = _decoder(cast("Any", into)).decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Undecodable(str(error)) from None
    return value


def decode_page(body: bytes, into: type[T], resource: ApiResource) -> ObjectPage[T]:
    """Decode a list page. Raises Undecodable only when the page itself, not an item, cannot be read."""
    try:
        listing = _page_decoder(cast("Any", into)).decode(body)
        items = listing.items or []
        bad: list[SkippedObject] = []
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        listing = _raw_listing(body)
        items, bad = _decode_one_by_one(listing.items or [], into, resource)
    meta = listing.metadata or _ListMeta()
    return ObjectPage(items, meta.resource_version or "", meta.continue_token or "", meta.remaining, bad)


def _raw_listing(body: bytes) -> Any:
    try:
        return _page_decoder(msgspec.Raw).decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Undecodable(str(error)) from None


def _decode_one_by_one(
    raws: Iterable[msgspec.Raw], into: type[T], resource: ApiResource
) -> tuple[list[T], list[SkippedObject]]:
    items: list[T] = []
    bad: list[SkippedObject] = []
    for index, raw in enumerate(raws):
        try:
            items.append(decode(raw, into))
        except Undecodable as error:
            bad.append(bad_object(raw, resource, str(error), otherwise=f"items[{index}]"))
    return items, bad


def bad_object(raw: msgspec.Raw, resource: ApiResource, reason: str, *, otherwise: str) -> SkippedObject:
    identity = raw_identity(raw)
    return SkippedObject(
        str(resource), str(identity.key) if identity else otherwise, reason, identity, bytes(raw)
    )


def raw_identity(raw: bytes | msgspec.Raw) -> ObjectIdentity | None:
    """Return key, uid and version of an undecoded object, or None if they cannot be read."""
    try:
        meta = _ONLY_META.decode(raw).metadata
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if meta is None:
        return None
    return ObjectIdentity(
        ObjectKey(meta.namespace or "", meta.name or ""), meta.uid or "", meta.resource_version or ""
    )


def identity_of(obj: Any) -> ObjectIdentity:
    """Return key, uid and version of a decoded object: a dict, or a struct as in `model.meta`."""
    if isinstance(obj, dict):
        meta = obj.get("metadata")
        if not isinstance(meta, dict):
            return ObjectIdentity(ObjectKey("", ""), "", "")
        name, namespace, uid, version = map(meta.get, ("name", "namespace", "uid", "resourceVersion"))
        return ObjectIdentity(
            ObjectKey(str(namespace or ""), str(name or "")), str(uid or ""), str(version or "")
        )
    meta = obj.metadata
    return ObjectIdentity(ObjectKey(meta.namespace, meta.name), meta.uid, meta.resource_version)
