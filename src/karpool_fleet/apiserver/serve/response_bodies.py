"""Turns stored records into response bodies: whole, as a table, or metadata only.

Whole objects are their stored bytes. A record that was written in another version of its API is decoded and
converted first.
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

import msgspec

from karpool_fleet.apiserver.kinds.conversion import converted
from karpool_fleet.apiserver.objects.types import Object, ResourceType
from karpool_fleet.apiserver.serve.status import not_acceptable
from karpool_fleet.apiserver.storage.record import StoredObject

_encode = msgspec.json.encode


class Form(Enum):
    OBJECT = "object"
    TABLE = "table"
    OLD_TABLE = "table of meta.k8s.io/v1beta1"
    METADATA = "metadata"


@lru_cache(maxsize=256)
def negotiate(accept: str) -> Form:
    """The first form in an Accept header that we can produce; raises 406 when there is none."""
    for offer in accept.split(",") if accept.strip() else ["*/*"]:
        media, *parameters = (part.strip() for part in offer.split(";"))
        if media not in ("application/json", "application/*", "*/*"):
            continue
        named = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        match named.get("as"), named.get("g", "meta.k8s.io"), named.get("v", "v1"):
            case None, _, _:
                return Form.OBJECT
            case "Table", "meta.k8s.io", "v1":
                return Form.TABLE
            case "Table", "meta.k8s.io", "v1beta1":
                return Form.OLD_TABLE
            case "PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1":
                return Form.METADATA
    raise not_acceptable(accept[:120])


class Renderer:
    """Renders records of one resource for one request."""

    def __init__(self, resource: ResourceType, form: Form, *, now: float, include_object: str = "") -> None:
        self.resource = resource
        self.form = Form.TABLE if form is Form.OLD_TABLE else form
        self._table_version = "meta.k8s.io/v1beta1" if form is Form.OLD_TABLE else "meta.k8s.io/v1"
        self._now = now
        self._include = include_object or "Metadata"
        self._api_version = resource.api_version
        self._columns_sent = False

    def whole(self, record: StoredObject) -> bytes:
        if record.api_version == self._api_version:
            return record.data
        return _encode(converted(record.object(), self._api_version))

    def one(self, record: StoredObject) -> bytes:
        match self.form:
            case Form.OBJECT:
                return self.whole(record)
            case Form.METADATA:
                return _encode(_metadata_only(record))
            case Form.TABLE:
                return _encode(self._table([record], {"resourceVersion": str(record.version)}))

    def many(self, records: Sequence[StoredObject], metadata: Object) -> bytes:
        match self.form:
            case Form.OBJECT:
                head = {"kind": f"{self.resource.kind}List", "apiVersion": self._api_version}
                body = b",".join([self.whole(record) for record in records])
                return _encode(head | {"metadata": metadata})[:-1] + b',"items":[' + body + b"]}"
            case Form.METADATA:
                return _encode(
                    {
                        "kind": "PartialObjectMetadataList",
                        "apiVersion": "meta.k8s.io/v1",
                        "metadata": metadata,
                        "items": [_metadata_only(record) for record in records],
                    }
                )
            case Form.TABLE:
                return _encode(self._table(records, metadata))

    def event(self, event_type: str, record: StoredObject) -> tuple[bytes, ...]:
        """One line of a watch, in pieces to be joined with its neighbours."""
        if self.form is Form.TABLE:
            table = self._table([record], {"resourceVersion": str(record.version)})
            if self._columns_sent:
                table["columnDefinitions"] = None  # clients keep those of the first event
            self._columns_sent = True
            return _HEADS[event_type], _encode(table), b"}\n"
        return _HEADS[event_type], self.one(record), b"}\n"

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj: Object = {"kind": self.resource.kind, "apiVersion": self._api_version, "metadata": metadata}
        if self.form is Form.METADATA:
            obj |= {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        elif self.form is Form.TABLE:
            row = {"cells": [], "object": obj}
            obj = {"kind": "Table", "apiVersion": self._table_version, "metadata": metadata, "rows": [row]}
        return _encode({"type": "BOOKMARK", "object": obj}) + b"\n"

    def _table(self, records: Sequence[StoredObject], metadata: Object) -> Object:
        from karpool_fleet.apiserver.printing.tables import table

        items = [record.object() for record in records]
        return table(
            self.resource,
            items,
            now=self._now,
            include_object=self._include,
            list_metadata=metadata,
            api_version=self._table_version,
        )


_HEADS = {kind: b'{"type":"%s","object":' % kind.encode() for kind in ("ADDED", "MODIFIED", "DELETED")}


def _metadata_only(record: StoredObject) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": record.object()["metadata"],
    }
