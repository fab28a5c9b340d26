"""Strategic merge patch: a merge patch with rules for lists.

Lists with merge keys are merged item by item, lists of distinct scalars are united, and all others are
replaced. The directives `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/<field>` and
`$setElementOrder/<field>` are supported; none of them is left in the result. Order follows Kubernetes: items
that the patch names come in its order, the others keep theirs, and new items come first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from karpool_fleet.apiserver.objects.types import Object, Schema
from karpool_fleet.apiserver.patches.json_patch import PatchError
from karpool_fleet.apiserver.patches.values import copied
from karpool_fleet.apiserver.schema.field_types import FieldType, field_types

_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"
_MAP_DIRECTIVES = ("$patch", "$retainKeys")
_Scalar = str | int | float | bool | None


def strategic_merge(doc: Object, patch: object, schema: Schema | None) -> Object:
    """The patched object; shares nothing with `doc` or `patch`. Raises PatchError."""
    if not isinstance(patch, dict):
        raise PatchError("BadRequest", "a strategic merge patch must be an object")
    try:
        merged = _merge_map(doc, patch, field_types(schema), "")
        return dict(copied(merged))
    except RecursionError:
        raise PatchError("BadRequest", "the patch or the object nests too deeply") from None


def _merge_map(current: Mapping[str, Any], patch: Mapping[str, Any], kind: FieldType, path: str) -> Object:
    directive = _directive(patch, path)
    if directive == "replace":
        return _plain_map(patch)
    if directive == "delete":
        return {}
    result = _retained(current, patch, path)
    for name in _fields_to_merge(patch):
        below = f"{path}.{name}"
        value = patch.get(name, _ABSENT)
        live = result.get(name, _ABSENT)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(live, dict):
            result[name] = _merge_map(live, value, kind.child(name), below)
        elif isinstance(live, list) and (value is _ABSENT or isinstance(value, list)):
            edit = _ListEdit(patch, name, below)
            result[name] = edit.merged_into(live, kind.child(name))
        elif value is not _ABSENT:
            result[name] = _plain(value)
    return result


_ABSENT: Any = object()


def _directive(patch: Mapping[str, Any], path: str) -> str | None:
    directive = patch.get("$patch")
    if directive not in (None, "replace", "delete", "merge"):
        raise PatchError(
            "BadRequest", f"{path or 'patch'}.$patch: {directive!r:.100}: must be replace, delete or merge"
        )
    return directive


def _retained(current: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> Object:
    if "$retainKeys" not in patch:
        return dict(current)
    retain = patch["$retainKeys"]
    if not isinstance(retain, list) or not all(isinstance(name, str) for name in retain):
        raise PatchError("BadRequest", f"{path or 'patch'}.$retainKeys: must be a list of field names")
    kept = set(retain)
    for name, value in patch.items():
        if value is not None and not _is_directive(name) and name not in kept:
            raise PatchError("BadRequest", f"{path}.{name}: is set by the patch but missing in $retainKeys")
    return {name: value for name, value in current.items() if name in kept}


def _fields_to_merge(patch: Mapping[str, Any]) -> Iterable[str]:
    """Return ordinary fields, and fields that only a list directive names, without duplicates."""
    names: dict[str, None] = {}
    for name in patch:
        if name.startswith(_ORDER) or name.startswith(_DELETE):
            names[name.partition("/")[2]] = None
        elif name not in _MAP_DIRECTIVES:
            names[name] = None
    return names


def _is_directive(name: str) -> bool:
    return name in _MAP_DIRECTIVES or name.startswith((_ORDER, _DELETE))


def _plain(value: Any) -> Any:
    """Return a value of the patch without directives and without nulls in maps."""
    if isinstance(value, dict):
        return _plain_map(value)
    if isinstance(value, list):
        return [_plain(item) for item in value if not (isinstance(item, dict) and "$patch" in item)]
    return value


def _plain_map(patch: Mapping[str, Any]) -> Object:
    return {
        name: _plain(value) for name, value in patch.items() if value is not None and not _is_directive(name)
    }


class _ListEdit:
    """The changes of one patch to one list."""

    def __init__(self, patch: Mapping[str, Any], name: str, path: str) -> None:
        self.path = path
        self.replaces = isinstance(patch.get(name), list)
        self.items: list[Any] = patch[name] if self.replaces else []
        self.order = _items(patch, _ORDER + name, path)
        self.deleted = _items(patch, _DELETE + name, path) or []

    def merged_into(self, live: list[Any], kind: FieldType) -> list[Any]:
        if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in self.items):
            return [_plain(item) for item in self.items if not (isinstance(item, dict) and "$patch" in item)]
        if kind.keys:
            return self._merge_keyed(live, kind)
        if kind.is_set or (self._has_list_directive and _all_scalars(live) and _all_scalars(self.items)):
            return self._merge_set(live)
        return [_plain(item) for item in self.items] if self.replaces else live

    @property
    def _has_list_directive(self) -> bool:
        return bool(self.deleted) or self.order is not None

    def _merge_set(self, live: list[Any]) -> list[Any]:
        gone = {_scalar(item, self.path) for item in self.deleted}
        positions: dict[tuple[type, _Scalar], int] = {}
        for item in live:
            identity = _scalar(item, self.path)
            if identity not in gone:
                positions.setdefault(identity, len(positions))
        before = len(positions)
        for item in self.items:
            positions.setdefault(_scalar(item, self.path), len(positions))
        named = self.items if self.order is None else self.order
        first = [positions.get(_scalar(item, self.path), -1) for item in named]
        values = [value for _, value in positions]
        return [values[position] for position in _ordered(first, len(values), before)]

    def _merge_keyed(self, live: list[Any], kind: FieldType) -> list[Any]:
        assert kind.keys is not None
        items, additions = self._split()
        doomed = _KeyedItems(live, kind.keys, self.path)
        for item in items:
            doomed.delete_all(item)
        merged = _KeyedItems(doomed.remaining(), kind.keys, self.path)
        before = len(merged.items)
        first = [self._merge_item(merged, item, kind) for item in additions]
        if self.order is not None:
            first = [merged.find(item) for item in self.order]
        return [merged.items[position] for position in _ordered(first, len(merged.items), before)]

    def _split(self) -> tuple[list[Object], list[Object]]:
        """Items to delete, and items to merge."""
        deletions: list[Object] = []
        additions: list[Object] = []
        for item in self.items:
            if not isinstance(item, dict):
                raise PatchError("BadRequest", f"{self.path}: {item!r:.100}: must be an object")
            (deletions if _directive(item, self.path) == "delete" else additions).append(item)
        return deletions, additions

    def _merge_item(self, merged: "_KeyedItems", item: Object, kind: FieldType) -> int:
        position = merged.find(item)
        if position < 0:
            return merged.append(_plain_map(item))
        merged.items[position] = _merge_map(merged.items[position], item, kind, f"{self.path}[{position}]")
        return position


class _KeyedItems:
    """Items found by their merge keys.

    The first key decides; further keys count when the searched item names them, so
    that a port without a protocol still finds the port that a default made TCP.
    """

    def __init__(self, items: Iterable[Any], keys: Sequence[str], path: str) -> None:
        self.items: list[Any] = []
        self._keys = keys
        self._path = path
        self._positions: dict[tuple[type, _Scalar], list[int]] = {}
        for item in items:
            self.append(item)

    def append(self, item: Any) -> int:
        position = len(self.items)
        self.items.append(item)
        value = item.get(self._keys[0]) if isinstance(item, dict) else None
        if isinstance(value, str | int | float):
            self._positions.setdefault((type(value), value), []).append(position)
        return position

    def find(self, wanted: Any) -> int:
        """Return the first matching position, or -1."""
        return next(iter(self._matches(wanted)), -1)

    def delete_all(self, wanted: Object) -> None:
        for position in self._matches(wanted):
            self.items[position] = _ABSENT

    def remaining(self) -> list[Any]:
        return [item for item in self.items if item is not _ABSENT]

    def _matches(self, wanted: Any) -> list[int]:
        first, *others = self._keys
        if not isinstance(wanted, dict) or wanted.get(first) is None:
            raise PatchError("BadRequest", f"{self._path}: every item needs the merge key {first!r}")
        identity = _scalar(wanted[first], f"{self._path}.{first}")
        named = [key for key in others if wanted.get(key) is not None]
        return [
            position
            for position in self._positions.get(identity, ())
            if (item := self.items[position]) is not _ABSENT
            and all(item.get(key, wanted[key]) == wanted[key] for key in named)
        ]


def _items(patch: Mapping[str, Any], name: str, path: str) -> list[Any] | None:
    items = patch.get(name)
    if items is not None and not isinstance(items, list):
        raise PatchError("BadRequest", f"{path}: {name} must be a list")
    return items


def _all_scalars(items: list[Any]) -> bool:
    return not any(isinstance(item, dict | list) for item in items)


def _scalar(value: Any, path: str) -> tuple[type, _Scalar]:
    """A hashable identity that keeps 1 and true apart."""
    if isinstance(value, dict | list):
        raise PatchError("BadRequest", f"{path}: {value!r:.100}: must be a string, number or boolean")
    return type(value), value


def _ordered(first: Sequence[int], size: int, known: int) -> list[int]:
    """All positions: those in `first` in that order, the others in between where they were.

    Positions below `known` were in the list before. An untouched item goes before a
    named one only if it stood before it; that puts new items in front, as Kubernetes does.
    """
    named = list(dict.fromkeys(position for position in first if position >= 0))
    chosen = set(named)
    others = [position for position in range(size) if position not in chosen]
    result: list[int] = []
    next_other = 0
    for position in named:
        while next_other < len(others) and others[next_other] < position < known:
            result.append(others[next_other])
            next_other += 1
        result.append(position)
    return result + others[next_other:]
