"""Sets of fields in the form that managedFields stores: FieldsV1.

A set is a tree of dicts. `f:name` is a member of a map, `k:{...}` an item of a keyed
list, `v:...` an item of a set; an empty dict, or one holding `.`, says that the field
itself belongs to the set. The root is never a field, so `{}` is the empty set. No
function here changes its arguments; results may share branches with them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from karpool_fleet.apiserver.patches.values import same
from karpool_fleet.apiserver.schema.field_types import METADATA, FieldType

FieldSet = dict[str, Any]

# These have no owner: the server writes them, or they are the identity.
_IDENTITY = frozenset({"apiVersion", "kind", "metadata"})
_SERVER_METADATA = frozenset(
    {
        "creationTimestamp",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
_encode = msgspec.json.Encoder().encode
_MISSING: Any = object()
MAX_DEPTH = 256


def field_set(obj: Mapping[str, Any], root: FieldType) -> FieldSet:
    """Every field of an object that can have an owner."""
    result: FieldSet = {}
    if owned := _owned(obj.get("metadata")):
        result["f:metadata"] = _of_map(owned, METADATA, {})
    for name, value in obj.items():
        if name not in _IDENTITY:
            result["f:" + name] = _of(value, root.child(name))
    return result


def _of(value: Any, kind: FieldType) -> FieldSet:
    if type(value) is dict:
        return {} if kind.atomic else _of_map(value, kind, {})
    if type(value) is list:
        return _of_list(value, kind)
    return {}


def _of_map(value: Mapping[str, Any], kind: FieldType, result: FieldSet) -> FieldSet:
    # The hot loop of every create: known children are looked up without a call.
    children = kind.children
    for name, member in value.items():
        shape = type(member)
        if shape is dict:
            below = children.get(name) or kind.child(name)
            result["f:" + name] = {} if below.atomic else _of_map(member, below, {})
        elif shape is list:
            result["f:" + name] = _of_list(member, children.get(name) or kind.child(name))
        else:
            result["f:" + name] = {}
    return result


def _of_list(items: list[Any], kind: FieldType) -> FieldSet:
    if kind.keys is not None:
        atomic = kind.atomic
        return {
            item_key(item, kind): ({} if atomic or type(item) is not dict else _of_map(item, kind, {".": {}}))
            for item in items
        }
    return {item_key(item, kind): {} for item in items} if kind.is_set else {}


def item_key(item: Any, kind: FieldType) -> str:
    """The path element of a list item: `k:{"name":"app"}` or `v:"text"`."""
    if kind.keys is None or type(item) is not dict:
        return "v:" + _encode(item).decode()
    if len(kind.keys) == 1:
        key = kind.keys[0]
        value = item.get(key)
        if (
            type(value) is str
            and value.isascii()
            and value.isprintable()
            and '"' not in value
            and "\\" not in value
        ):
            return f'k:{{"{key}":"{value}"}}'
    values = {key: item.get(key, kind.key_defaults.get(key)) for key in kind.sorted_keys}
    return "k:" + _encode({key: value for key, value in values.items() if value is not None}).decode()


class Difference:
    """Fields added or changed, and fields removed; a removed field stands for all below it."""

    __slots__ = ("changed", "removed")

    def __init__(self) -> None:
        self.changed: FieldSet = {}
        self.removed: FieldSet = {}

    def add(self, key: str, below: "Difference") -> None:
        if below.changed:
            self.changed[key] = below.changed
        if below.removed:
            self.removed[key] = below.removed

    def member(self, name: str, old: Any, new: Any, parent: FieldType) -> None:
        """Compare one member of a map of type `parent`; `old` may be _MISSING."""
        if old is new:
            return
        key = "f:" + name
        shape = type(new)
        if old is _MISSING:
            self.changed[key] = _of(new, parent.child(name))
        elif shape is not type(old):
            # 1 and 1.0 are one value; 1 and true, or a map where a list was, are not
            if {shape, type(old)} != {int, float} or old != new:
                self.removed[key] = {}
                self.changed[key] = _of(new, parent.child(name))
        elif shape is not dict and shape is not list:
            if old != new:
                self.changed[key] = {}
        elif _encode(old) != _encode(new):  # bytes are compared faster than members, and mostly equal
            self._container(key, old, new, parent.child(name))

    def _container(self, key: str, old: Any, new: Any, kind: FieldType) -> None:
        if type(new) is dict and not kind.atomic:
            self.add(key, _compare_maps(old, new, kind))  # emptied, a map is still the same map
        elif type(new) is list and not kind.is_plain_list:
            self.add(key, _compare_lists(old, new, kind))
        elif not same(old, new):
            self.changed[key] = {}


def compare(old: Mapping[str, Any], new: Mapping[str, Any], root: FieldType) -> Difference:
    """What a write changed among the fields that can have an owner."""
    result = Difference()
    before, after = old.get("metadata"), new.get("metadata")
    if before is not after:
        result.add("f:metadata", _compare_maps(_owned(before), _owned(after), METADATA))
    for name, value in new.items():
        if name not in _IDENTITY:
            result.member(name, old.get(name, _MISSING), value, root)
    for name in old:
        if name not in new and name not in _IDENTITY:
            result.removed["f:" + name] = {}
    return result


def _owned(metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, dict):
        return {}
    return {name: value for name, value in metadata.items() if name not in _SERVER_METADATA}


def _compare_maps(old: Mapping[str, Any], new: Mapping[str, Any], kind: FieldType) -> Difference:
    result = Difference()
    for name, value in new.items():
        result.member(name, old.get(name, _MISSING), value, kind)
    for name in old:
        if name not in new:
            result.removed["f:" + name] = {}
    return result


def _compare_lists(old: list[Any], new: list[Any], kind: FieldType) -> Difference:
    """Compare items by key or value; their order has no owner."""
    result = Difference()
    before = {item_key(item, kind): item for item in old}
    after = {item_key(item, kind): item for item in new}
    for key, item in after.items():
        previous = before.get(key, _MISSING)
        if previous is _MISSING:
            result.changed[key] = _of_list([item], kind)[key]
        elif kind.keys is None:
            continue
        elif kind.atomic or type(item) is not dict or type(previous) is not dict:
            if not same(previous, item):
                result.changed[key] = {}
        else:
            result.add(key, _compare_maps(previous, item, kind))
    for key in before:
        if key not in after:
            result.removed[key] = {}
    return result


def holds_itself(node: FieldSet) -> bool:
    """Whether the field a node stands for is in the set, not just fields below it."""
    return not node or "." in node


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """The fields in either; `left` itself when it holds them all."""
    if not left or not right:
        return left or right
    return _union(left, right)


def _union(left: FieldSet, right: FieldSet) -> FieldSet:
    result = left
    for key, node in right.items():
        mine = left.get(key)
        both = node if mine is None else _union(mine, node)
        if both is not mine:
            result = dict(left) if result is left else result
            result[key] = both
    if not left and right and "." not in result:  # a leaf that now has fields below it
        return {".": {}, **result}
    if not right and left and "." not in left:
        return {".": {}, **left}
    return result


def subtract(left: FieldSet, right: FieldSet) -> FieldSet:
    """The fields of `left` that are not in `right`; `left` itself when they share none."""
    return (_subtract(left, right) or {}) if left and right else left


def _subtract(left: FieldSet, right: FieldSet) -> FieldSet | None:
    result = left
    for key, other in right.items():
        node = left.get(key) if key != "." else None
        if node is not None and (rest := _subtract(node, other)) is not node:
            result = dict(left) if result is left else result
            if rest is None:
                del result[key]
            else:
                result[key] = rest
    if holds_itself(left):
        if holds_itself(right):
            return {key: node for key, node in result.items() if key != "."} or None
        return {} if result.keys() == {"."} and result is not left else result
    return result or None


def subtract_trees(left: FieldSet, right: FieldSet) -> FieldSet:
    """`left` without the fields of `right` and all below them; `left` itself when that is nothing."""
    result = left
    for key, other in right.items():
        node = left.get(key) if key != "." else None
        if node is None:
            continue
        rest = None if holds_itself(other) else subtract_trees(node, other)
        if rest is not node:
            result = dict(left) if result is left else result
            # a field that lost all below it stays only if it was in the set itself
            if rest or (rest is not None and holds_itself(node)):
                result[key] = rest
            else:
                del result[key]
    return {} if result is not left and result.keys() == {"."} else result


def intersect(left: FieldSet, right: FieldSet) -> FieldSet:
    """The fields in both."""
    return (_intersect(left, right) or {}) if left and right else {}


def _intersect(left: FieldSet, right: FieldSet) -> FieldSet | None:
    if len(left) > len(right):
        left, right = right, left
    result: FieldSet = {}
    for key, node in left.items():
        other = right.get(key)
        if other is not None and key != "." and (both := _intersect(node, other)) is not None:
            result[key] = both
    if holds_itself(left) and holds_itself(right):
        return {".": {}, **result} if result else result
    return result or None


def same_set(left: FieldSet, right: FieldSet) -> bool:
    """Whether two sets hold the same fields, however they are spelt."""
    return left is right or left == right or not (subtract(left, right) or subtract(right, left))


def paths(fields: FieldSet, prefix: str = "") -> Iterator[str]:
    """Each field as people write it: `.spec.containers[name="app"].image`."""
    for key, node in fields.items():
        if key == ".":
            continue
        here = prefix + _readable(key)
        if holds_itself(node):
            yield here
        yield from paths(node, here)


def _readable(key: str) -> str:
    kind, _, rest = key.partition(":")
    if kind == "f":
        return "." + rest
    if kind == "v":
        return f"[={rest}]"
    if kind == "k":
        try:
            members = msgspec.json.decode(rest)
        except msgspec.DecodeError:
            members = None
        if isinstance(members, dict):
            return (
                "[" + ",".join(f"{name}={_encode(value).decode()}" for name, value in members.items()) + "]"
            )
    return f"[{rest}]"


def is_field_set(value: Any, depth: int = 0) -> bool:
    """Whether something a client sent can be used as a field set."""
    return (
        isinstance(value, dict)
        and depth < MAX_DEPTH
        and all(
            (key == "." and node == {})
            or (key.startswith(("f:", "k:", "v:", "i:")) and is_field_set(node, depth + 1))
            for key, node in value.items()
        )
    )
