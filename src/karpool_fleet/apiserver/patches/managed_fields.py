"""The owners of fields: the entries of `metadata.managedFields`.

`track_update` maintains them for plain writes (create, update, patches): a changed field belongs to its
writer, a removed field to no manager. Entries that did not change keep their time. A client may rewrite the
list itself, as kubectl does when it turns client-side into server-side apply; `[{}]` resets the list, while
an empty list comes from a client that does not know the field and changes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from karpool_fleet.apiserver.objects.types import Object, Schema
from karpool_fleet.apiserver.patches.field_sets import (
    Difference,
    FieldSet,
    compare,
    field_set,
    is_field_set,
    same_set,
    subtract,
    subtract_trees,
    union,
)
from karpool_fleet.apiserver.schema.field_types import field_types

# Kubernetes keeps ten entries of plain writers; older ones are folded into one, so
# that a client with a new name for every write cannot grow the object without end.
MAX_UPDATE_ENTRIES = 10
ANCIENT = "ancient-changes"


@dataclass(frozen=True, slots=True)
class ManagedFieldsEntry:
    manager: str
    operation: str  # Apply or Update
    api_version: str
    time: str
    fields: FieldSet
    subresource: str = ""

    def is_by(self, manager: str, operation: str, api_version: str, subresource: str) -> bool:
        """Whether a write of this kind goes into this entry; an applier keeps its entry across versions."""
        return (
            self.manager == manager
            and self.operation == operation
            and self.subresource == subresource
            and (operation == "Apply" or self.api_version == api_version)
        )

    def encoded(self) -> Object:
        entry = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields,
        }
        if self.subresource:
            entry["subresource"] = self.subresource
        return entry


def decode(managed: Any) -> list[ManagedFieldsEntry] | None:
    """The entries of a managedFields list; None when it is not one."""
    if not isinstance(managed, list):
        return None
    entries = [_decode_entry(entry) for entry in managed if _is_entry(entry)]
    return entries if len(entries) == len(managed) else None


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.get("operation") in ("Apply", "Update")
        and entry.get("fieldsType", "FieldsV1") == "FieldsV1"
        and all(isinstance(entry.get(name) or "", str) for name in _TEXTS)
        and is_field_set(entry.get("fieldsV1") or {})
    )


_TEXTS = ("manager", "apiVersion", "time", "subresource")


def _decode_entry(entry: Object) -> ManagedFieldsEntry:
    return ManagedFieldsEntry(
        manager=entry.get("manager") or "",
        operation=entry["operation"],
        api_version=entry.get("apiVersion") or "",
        time=entry.get("time") or "",
        fields=entry.get("fieldsV1") or {},
        subresource=entry.get("subresource") or "",
    )


def encode(entries: Iterable[ManagedFieldsEntry]) -> list[Object]:
    """The list to store: appliers first, each group by time; empty entries are left out."""
    kept = [entry for entry in entries if entry.fields]
    kept.sort(key=lambda entry: (entry.operation, entry.time, entry.manager))
    return [entry.encoded() for entry in kept]


def entries_of(obj: Object | None) -> list[ManagedFieldsEntry]:
    """The entries of a stored object, which were checked before they were stored."""
    managed = obj["metadata"].get("managedFields") if obj else None
    return [_decode_entry(entry) for entry in managed or ()]


def store(obj: Object, entries: list[ManagedFieldsEntry]) -> None:
    """Write the entries into an object, or remove the field when there are none."""
    metadata = obj.setdefault("metadata", {})
    encoded = encode(entries)
    if encoded:
        metadata["managedFields"] = encoded
    else:
        metadata.pop("managedFields", None)


def track_update(
    old: Object | None,
    new: Object,
    *,
    manager: str,
    api_version: str,
    now: str,
    schema: Schema | None,
    subresource: str = "",
) -> None:
    """Set `new`'s managedFields after a plain write that turned `old` into `new`; None for a create."""
    root = field_types(schema)
    metadata = new.setdefault("metadata", {})
    given = metadata.get("managedFields")
    if old is None and not given:
        fields = field_set(new, root)
        metadata["managedFields"] = encode(
            [ManagedFieldsEntry(manager, "Update", api_version, now, fields, subresource)]
        )
        return
    before = _entries_before(old, given, subresource)
    difference = compare(old or {}, new, root)
    entries: list[ManagedFieldsEntry] = []
    mine = ManagedFieldsEntry(manager, "Update", api_version, now, difference.changed, subresource)
    for entry in before:
        if entry.is_by(manager, "Update", api_version, subresource):
            fields = union(subtract_trees(entry.fields, difference.removed), mine.fields)
            mine = entry if same_set(fields, entry.fields) else replace(mine, fields=fields)
        else:
            entries.append(without(entry, difference))
    store(new, fold_ancient([*entries, mine]))


def _entries_before(old: Object | None, given: Any, subresource: str) -> list[ManagedFieldsEntry]:
    """Return the entries before the write: the list that it sent, if allowed, else the stored one."""
    if subresource or not given or (old and given == old["metadata"].get("managedFields")):
        return entries_of(old)
    if given == [{}]:
        return []
    sent = decode(given)
    return entries_of(old) if sent is None else sent


def without(entry: ManagedFieldsEntry, difference: Difference) -> ManagedFieldsEntry:
    """Another manager's entry after a write changed or removed some of its fields."""
    if not difference.changed and not difference.removed:
        return entry
    fields = subtract(subtract_trees(entry.fields, difference.removed), difference.changed)
    return entry if same_set(fields, entry.fields) else replace(entry, fields=fields)


def fold_ancient(entries: list[ManagedFieldsEntry]) -> list[ManagedFieldsEntry]:
    """At most ten entries of plain writers; the oldest beyond that become one."""
    updates = [entry for entry in entries if entry.operation == "Update" and entry.fields]
    excess = len(updates) - MAX_UPDATE_ENTRIES
    if excess <= 0:
        return entries
    updates.sort(key=lambda entry: entry.time)
    oldest = updates[: excess + 1]
    folded = ManagedFieldsEntry(ANCIENT, "Update", oldest[-1].api_version, oldest[-1].time, {})
    for entry in oldest:
        folded = replace(folded, fields=union(folded.fields, entry.fields))
    return [entry for entry in entries if entry not in oldest] + [folded]
