"""Server-side apply: a manager applies fields, and the server tracks the owner of every field.

Applied values replace values that no other manager owns. Changing a field of another manager is a conflict
unless forced; an equal value shares the field. A field that a manager no longer applies is removed if no
other manager owns it. Applying the same again returns the live object itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from karpool_fleet.apiserver.objects.types import Object, Schema
from karpool_fleet.apiserver.patches.field_sets import (
    Difference,
    FieldSet,
    compare,
    field_set,
    holds_itself,
    intersect,
    item_key,
    paths,
    same_set,
    subtract,
    union,
)
from karpool_fleet.apiserver.patches.json_patch import PatchError
from karpool_fleet.apiserver.patches.managed_fields import (
    ManagedFieldsEntry,
    entries_of,
    fold_ancient,
    store,
    track_update,
    without,
)
from karpool_fleet.apiserver.patches.values import copied, same
from karpool_fleet.apiserver.schema.field_types import FieldType, field_types

__all__ = ["ApplyConflict", "FieldConflict", "apply", "track_update"]

MAX_CAUSES = 100  # of a conflict that spans a whole object; the rest is counted


@dataclass(frozen=True, slots=True)
class FieldConflict:
    """A field that another manager owns with another value."""

    entry: ManagedFieldsEntry
    field: str

    @property
    def holder(self) -> str:
        subresource = f' with subresource "{self.entry.subresource}"' if self.entry.subresource else ""
        return f'conflict with "{self.entry.manager}"{subresource} using {self.entry.api_version}'


class ApplyConflict(Exception):
    """Fields of other managers would change; nothing was applied. Answer 409 with `causes()`."""

    def __init__(self, conflicts: Sequence[FieldConflict]) -> None:
        self.conflicts = tuple(conflicts)
        shown = [f"{conflict.holder}: {conflict.field}" for conflict in self.conflicts[:MAX_CAUSES]]
        rest = len(self.conflicts) - len(shown)
        count = f"{len(self.conflicts)} conflict{'s' if len(self.conflicts) > 1 else ''}"
        more = f"; and {rest} more" if rest else ""
        super().__init__(f"Apply failed with {count}: {'; '.join(shown)}{more}")

    def causes(self) -> list[Object]:
        """The `details.causes` of the Status."""
        return [
            {"reason": "FieldManagerConflict", "message": conflict.holder, "field": conflict.field}
            for conflict in self.conflicts[:MAX_CAUSES]
        ]


def apply(
    live: Object | None,
    applied: Object,
    *,
    manager: str,
    force: bool,
    schema: Schema | None,
    api_version: str,
    now: str,
    subresource: str = "",
) -> Object:
    """Return the live object with `applied` merged into it and its managedFields updated.

    Returns `live` itself when nothing changes. Raises ApplyConflict, or PatchError for an applied object that
    cannot be used. The result shares nothing with `applied`.
    """
    root = field_types(schema)
    desired = _checked(applied, root)
    mine = ManagedFieldsEntry(manager, "Apply", api_version, now, field_set(desired, root), subresource)
    if live is None:
        store(desired, [mine])
        return desired
    before = entries_of(live)
    last = next((e for e in before if e.is_by(manager, "Apply", api_version, subresource)), None)
    others = [entry for entry in before if entry is not last]

    merged = _merge_map(live, desired, root)
    if last is not None:
        _remove_abandoned(merged, last, mine, others, root)
    difference = compare(live, merged, root)
    if not force:
        _refuse_conflicts(others, difference)
    others_after = [without(entry, difference) for entry in others]

    if others_after == others and _is_same_claim(last, mine):
        if same(live, merged):
            return live
        if last is not None and not difference.changed and not difference.removed:
            mine = replace(mine, time=last.time)  # only an order changed, or fields without owner
    store(merged, fold_ancient([*others_after, mine]))
    return merged


def _is_same_claim(last: ManagedFieldsEntry | None, mine: ManagedFieldsEntry) -> bool:
    if last is None:
        return not mine.fields
    return last.api_version == mine.api_version and same_set(last.fields, mine.fields)


def _checked(applied: Object, root: FieldType) -> Object:
    """Return a copy without nulls, which are frequent in generated manifests and have no meaning."""
    if (applied.get("metadata") or {}).get("managedFields"):
        raise PatchError(
            "BadRequest", "metadata.managedFields: must not be set in an applied object; remove the field"
        )
    try:
        desired: Object = _without_nulls(applied)
        _refuse_duplicates(desired, root, "")
    except RecursionError:
        raise PatchError("BadRequest", "the applied object nests too deeply") from None
    desired.get("metadata", {}).pop("managedFields", None)
    return desired


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _refuse_duplicates(value: Any, kind: FieldType, path: str) -> None:
    if isinstance(value, dict):
        for name, member in value.items():
            if isinstance(member, dict | list):
                _refuse_duplicates(member, kind.child(name), f"{path}.{name}")
    elif isinstance(value, list) and not kind.is_plain_list:
        seen: set[str] = set()
        for item in value:
            key = item_key(item, kind)
            if key in seen:
                raise PatchError("Invalid", f"{path}: {key[2:]:.200} occurs more than once")
            seen.add(key)
            if isinstance(item, dict):
                _refuse_duplicates(item, kind, path)


def _refuse_conflicts(others: Sequence[ManagedFieldsEntry], difference: Difference) -> None:
    conflicts = [
        FieldConflict(entry, field)
        for entry in others
        for field in paths(intersect(entry.fields, difference.changed))
    ]
    if conflicts:
        raise ApplyConflict(conflicts)


def _merge(live: Any, wanted: Any, kind: FieldType) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict) and not kind.atomic:
        return _merge_map(live, wanted, kind)
    if isinstance(wanted, list) and isinstance(live, list) and not kind.is_plain_list:
        return _merge_lists(live, wanted, kind)
    return wanted


def _merge_map(live: Object, wanted: Object, kind: FieldType) -> Object:
    result: Object = {name: value if name in wanted else copied(value) for name, value in live.items()}
    for name, value in wanted.items():
        result[name] = _merge(live[name], value, kind.child(name)) if name in live else value
    return result


def _merge_lists(live: list[Any], wanted: list[Any], kind: FieldType) -> list[Any]:
    """Return applied items in their order; live items that are not applied keep their place."""
    live_keys = [item_key(item, kind) for item in live]
    position = {key: index for index, key in reversed(list(enumerate(live_keys)))}
    wanted_keys = {item_key(item, kind) for item in wanted}
    pending = set(wanted_keys)
    result: list[Any] = []
    cursor = 0
    for item in wanted:
        while cursor < len(live) and live_keys[cursor] not in pending:
            if live_keys[cursor] not in wanted_keys:
                result.append(copied(live[cursor]))
            cursor += 1
        key = item_key(item, kind)
        pending.discard(key)
        result.append(_merge_item(live[position[key]], item, kind) if key in position else item)
    result += [copied(live[at]) for at in range(cursor, len(live)) if live_keys[at] not in wanted_keys]
    return result


def _merge_item(live: Any, wanted: Any, kind: FieldType) -> Any:
    if kind.atomic or not isinstance(live, dict) or not isinstance(wanted, dict):
        return wanted
    return _merge_map(live, wanted, kind)


def _remove_abandoned(
    merged: Object,
    last: ManagedFieldsEntry,
    mine: ManagedFieldsEntry,
    others: Sequence[ManagedFieldsEntry],
    root: FieldType,
) -> None:
    kept = mine.fields
    for entry in others:
        kept = union(kept, entry.fields)
    abandoned = subtract(last.fields, kept)
    if abandoned:
        _remove_members(merged, abandoned, kept, root)


def _remove_members(value: Object, abandoned: FieldSet, kept: FieldSet, kind: FieldType) -> None:
    for key, node in abandoned.items():
        name = key[2:]
        if not key.startswith("f:") or name not in value:
            continue
        held = kept.get(key)
        whole = held is None and holds_itself(node)
        if whole or not (_remove_below(value[name], node, held or {}, kind.child(name)) or held is not None):
            del value[name]


def _remove_below(value: Any, abandoned: FieldSet, kept: FieldSet, kind: FieldType) -> bool:
    """Remove abandoned fields below a value; return whether anything is left of it."""
    if isinstance(value, dict):
        _remove_members(value, abandoned, kept, kind)
    elif isinstance(value, list):
        value[:] = [item for item in value if _stays(item, abandoned, kept, kind)]
    else:
        return True
    return bool(value)


def _stays(item: Any, abandoned: FieldSet, kept: FieldSet, kind: FieldType) -> bool:
    key = item_key(item, kind)
    node, held = abandoned.get(key), kept.get(key)
    if node is None:
        return True
    if held is None and holds_itself(node):
        return False
    return _remove_below(item, node, held or {}, kind) or held is not None
