"""get and list, with resourceVersion semantics and consistent pages.

All pages of one list show the state at the resourceVersion of the first. The records of that state are held,
without copying, for the most recent lists and for five minutes; a later page is answered 410 with a token
that continues from the same place in the newest state.
"""

import base64
import binascii
from bisect import bisect_right
from collections import OrderedDict
from operator import attrgetter

import msgspec

from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.types import Object, ResourceType
from karpool_fleet.apiserver.serve.response_bodies import Renderer
from karpool_fleet.apiserver.serve.routes import Query
from karpool_fleet.apiserver.serve.status import (
    ApiStatusError,
    bad_request,
    expired,
    not_found,
    version_too_large,
)
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.storage.store import Collection
from karpool_fleet.apiserver.verbs.selectors import StoredSelection

_HELD_LISTS = 64
_HELD_SECONDS = 300.0
_key = attrgetter("key")


def find(cluster: ServedCluster, resource: ResourceType, namespace: str, name: str) -> StoredObject:
    record = cluster.collection(resource).get(namespace, name)
    if record is None:
        raise not_found(resource, name)
    return record


class HeldLists:
    """The states that unfinished paged lists read from, newest last."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, str | None, int], tuple[float, list[StoredObject]]] = OrderedDict()

    def hold(self, key: tuple[str, str | None, int], records: list[StoredObject], now: float) -> None:
        self._held[key] = (now, records)
        self._held.move_to_end(key)
        while len(self._held) > _HELD_LISTS:
            self._held.popitem(last=False)

    def find(self, key: tuple[str, str | None, int], now: float) -> list[StoredObject] | None:
        held = self._held.get(key)
        if held is None:
            return None
        since, records = held
        if now - since > _HELD_SECONDS:
            del self._held[key]
            return None
        return records


def list_objects(
    cluster: ServedCluster, held: HeldLists, selection: StoredSelection, query: Query, renderer: Renderer
) -> bytes:
    collection = cluster.collection(renderer.resource)
    limit = query.number("limit") or 0
    if token := query.text("continue"):
        if query.text("resourceVersion") not in ("", "0"):
            raise bad_request("resourceVersion cannot be given together with continue")
        records, version, start = _resume(cluster, held, collection, selection, token)
    else:
        check_version(cluster, collection, query)
        records, version, start = selection.candidates(collection), cluster.store.version, 0
    page, rest = _page(records, start, selection, limit)
    metadata: Object = {"resourceVersion": str(version)}
    if rest:
        held.hold(
            (collection.group_resource, selection.namespace, version), records, cluster.clock.monotonic()
        )
        metadata["continue"] = _token(version, page[-1].key)
        if not selection.filtered:
            metadata["remainingItemCount"] = rest
    return renderer.many(page, metadata)


def check_version(cluster: ServedCluster, collection: Collection, query: Query) -> None:
    """Refuse a list at a version that cannot be served; the newest state satisfies every other version."""
    match = query.choice("resourceVersionMatch", "Exact", "NotOlderThan")
    version = query.number("resourceVersion")
    if match and version is None:
        raise bad_request("resourceVersionMatch needs a resourceVersion")
    if not version:
        if match == "Exact":
            raise bad_request('resourceVersionMatch=Exact needs a resourceVersion other than "0"')
        return
    if version > cluster.store.version:
        raise version_too_large(version, cluster.store.version)
    if match == "Exact" and collection.changed_at > version:
        raise expired(
            f"the state of {collection.group_resource} at resourceVersion {version} is no longer kept; "
            "list without resourceVersionMatch=Exact"
        )


def _page(
    records: list[StoredObject], start: int, selection: StoredSelection, limit: int
) -> tuple[list[StoredObject], int]:
    """Return a page, and how many records follow it (1 for "some" when counting would be needed)."""
    if not selection.filtered:
        end = start + limit if limit else len(records)
        return (records[start:end] if start or limit else records), max(0, len(records) - end)
    page: list[StoredObject] = []
    for position in range(start, len(records)):
        if selection.matches(records[position]):
            if limit and len(page) == limit:
                return page, 1
            page.append(records[position])
    return page, 0


def _resume(
    cluster: ServedCluster, held: HeldLists, collection: Collection, selection: StoredSelection, token: str
) -> tuple[list[StoredObject], int, int]:
    version, after = _read_token(token)
    if version > cluster.store.version:
        raise _malformed()
    if version == 0:
        records, version = selection.candidates(collection), cluster.store.version
    elif collection.changed_at <= version:
        records = selection.candidates(collection)
    else:
        key = (collection.group_resource, selection.namespace, version)
        page = held.find(key, cluster.clock.monotonic())
        if page is None:
            raise expired(
                f"the list of {collection.group_resource} at resourceVersion {version} is no longer kept; "
                "list again, or go on from the newest state with the continue token of this answer",
                continue_token=_token(0, after),
            )
        records = page
    return records, version, bisect_right(records, after, key=_key)


def _token(version: int, after: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([version, *after])).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        version, namespace, name = msgspec.json.decode(raw, type=tuple[int, str, str])
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise _malformed() from None
    if version < 0:
        raise _malformed()
    return version, (namespace, name)


def _malformed() -> ApiStatusError:
    return bad_request("continue: the token is not one this server gave out; list again from the start")
