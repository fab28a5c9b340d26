"""JSON Patch (RFC 6902) over JSON Pointers (RFC 6901).

All operations apply or none does, and the input is never changed: the result shares
nothing with it. A patch may hold 10,000 operations; what its `copy` operations may
add up to and how deep the result may nest are bounded too, since a few hundred bytes
of `copy` could otherwise double a document again and again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from karpool_fleet.apiserver.patches.values import copied, same

MAX_OPERATIONS = 10_000
MAX_POINTER_TOKENS = 128
MAX_DEPTH = 256
MAX_COPIED_BYTES = 3 * 1024 * 1024  # as much as a request body may hold


class PatchError(Exception):
    """A patch that cannot be used; `status_reason` is the reason of the Status to answer with.

    `BadRequest`: the patch itself is malformed. `Invalid`: it does not apply to this
    object. `RequestEntityTooLarge`: it asks for more than the server will do.
    """

    def __init__(self, status_reason: str, message: str) -> None:
        super().__init__(message)
        self.status_reason = status_reason
        self.message = message


class PatchTestFailed(PatchError):
    """A `test` operation found a value other than the expected one."""

    def __init__(self, message: str) -> None:
        super().__init__("Invalid", message)


def json_patch(doc: Any, ops: object) -> Any:
    """Return the document after all operations. Raises PatchError; `doc` is not changed."""
    if not isinstance(ops, list):
        raise PatchError("BadRequest", "a JSON patch must be a list of operations")
    if len(ops) > MAX_OPERATIONS:
        raise PatchError(
            "RequestEntityTooLarge",
            f"the JSON patch has {len(ops)} operations, at most {MAX_OPERATIONS} are accepted; split it",
        )
    run = _Run(doc)
    try:
        for number, operation in enumerate(ops):
            run.apply(number, operation)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(run.doc)
    return run.doc


class _Misfit(Exception):
    """A pointer that does not exist in this document."""


class _Run:
    """One patch being applied to its private copy of the document."""

    def __init__(self, doc: Any) -> None:
        try:
            self.doc = copied(doc)
        except RecursionError:
            raise _too_deep() from None
        self.copied_bytes = 0

    def apply(self, number: int, operation: object) -> None:
        if not isinstance(operation, dict):
            raise PatchError("BadRequest", f"operation {number} must be an object with op and path")
        verb = operation.get("op")
        label = f"operation {number} ({verb} {operation.get('path')!r})"[:300]
        method = _VERBS.get(verb) if isinstance(verb, str) else None
        if method is None:
            raise PatchError("BadRequest", f"{label}: op must be add, remove, replace, move, copy or test")
        path = _pointer(operation, "path", label)
        try:
            method(self, operation, path, label)
        except _Misfit as misfit:
            raise PatchError("Invalid", f"{label}: {misfit}") from None

    def add(self, operation: Mapping[str, Any], path: Sequence[str], label: str) -> None:
        self._put(path, copied(_value(operation, label)))

    def remove(self, operation: Mapping[str, Any], path: Sequence[str], label: str) -> None:
        self._take(path)

    def replace(self, operation: Mapping[str, Any], path: Sequence[str], label: str) -> None:
        value = copied(_value(operation, label))
        if not path:
            self.doc = value
            return
        parent = _find(self.doc, path[:-1])
        parent[_existing(parent, path[-1])] = value

    def move(self, operation: Mapping[str, Any], path: Sequence[str], label: str) -> None:
        origin = _pointer(operation, "from", label)
        if len(origin) < len(path) and list(path[: len(origin)]) == list(origin):
            raise PatchError("Invalid", f"{label}: a value cannot be moved into itself")
        if origin == path:
            _find(self.doc, origin)
        else:
            self._put(path, self._take(origin))

    def copy(self, operation: Mapping[str, Any], path: Sequence[str], label: str) -> None:
        value = _find(self.doc, _pointer(operation, "from", label))
        self.copied_bytes += _weight(value)
        if self.copied_bytes > MAX_COPIED_BYTES:
            raise PatchError(
                "RequestEntityTooLarge",
                f"{label}: the copy operations add up to more than {MAX_COPIED_BYTES} bytes",
            )
        self._put(path, copied(value))

    def test(self, operation: Mapping[str, Any], path: Sequence[str], label: str) -> None:
        expected = _value(operation, label)
        try:
            actual = _find(self.doc, path)
        except _Misfit as misfit:
            raise PatchTestFailed(f"{label}: {misfit}") from None
        if not same(actual, expected):
            raise PatchTestFailed(f"{label}: expected {_shown(expected)}, found {_shown(actual)}")

    def _put(self, path: Sequence[str], value: Any) -> None:
        if not path:
            self.doc = value
            return
        parent, last = _find(self.doc, path[:-1]), path[-1]
        if isinstance(parent, dict):
            parent[last] = value
        elif isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else _index(last, len(parent)), value)
        else:
            raise _Misfit(f"{last!r} cannot be added to a {_kind(parent)}")

    def _take(self, path: Sequence[str]) -> Any:
        if not path:
            raise _Misfit("the whole document cannot be removed")
        parent = _find(self.doc, path[:-1])
        place = _existing(parent, path[-1])
        return parent.pop(place)


_VERBS = {
    "add": _Run.add,
    "remove": _Run.remove,
    "replace": _Run.replace,
    "move": _Run.move,
    "copy": _Run.copy,
    "test": _Run.test,
}


def parse_pointer(text: str) -> list[str]:
    """The tokens of a JSON Pointer; raises ValueError with what is wrong."""
    if not text:
        return []
    if not text.startswith("/"):
        raise ValueError("must be empty or begin with /")
    tokens = text[1:].split("/")
    if len(tokens) > MAX_POINTER_TOKENS:
        raise ValueError(f"has more than {MAX_POINTER_TOKENS} parts")
    return [_unescape(token) for token in tokens] if "~" in text else tokens


def _unescape(token: str) -> str:
    if token.count("~") != token.count("~0") + token.count("~1"):
        raise ValueError("may hold ~ only as ~0 (for ~) or ~1 (for /)")
    return token.replace("~1", "/").replace("~0", "~")


def _pointer(operation: Mapping[str, Any], member: str, label: str) -> list[str]:
    text = operation.get(member)
    if not isinstance(text, str):
        raise PatchError("BadRequest", f"{label}: {member} must be a JSON pointer like /metadata/labels")
    try:
        return parse_pointer(text)
    except ValueError as error:
        raise PatchError("BadRequest", f"{label}: {member} {error}") from None


def _value(operation: Mapping[str, Any], label: str) -> Any:
    if "value" not in operation:
        raise PatchError("BadRequest", f"{label}: value is missing")
    return operation["value"]


def _find(doc: Any, path: Sequence[str]) -> Any:
    for token in path:
        doc = doc[_existing(doc, token)]
    return doc


def _existing(parent: Any, part: str) -> Any:
    """Return the key or index of an existing member."""
    if isinstance(parent, dict):
        if part not in parent:
            raise _Misfit(f"there is no member {part[:100]!r}")
        return part
    if isinstance(parent, list):
        if part == "-":
            raise _Misfit("'-' is the position after the last item, which does not exist")
        return _index(part, len(parent) - 1)
    raise _Misfit(f"a {_kind(parent)} has no member {part[:100]!r}")


def _index(part: str, last: int) -> int:
    # isdigit alone would also accept digits of other scripts
    if not (part.isascii() and part.isdigit()) or (len(part) > 1 and part[0] == "0"):
        raise _Misfit(f"{part[:100]!r} is not a list index")
    if len(part) > 10 or int(part) > last:
        raise _Misfit(f"index {part[:20]} is out of range, the last possible is {last}")
    return int(part)


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _weight(value: Any) -> int:
    """Roughly the bytes of a value's JSON; never zero, so that every copy counts."""
    if isinstance(value, dict):
        return 2 + sum(len(name) + 4 + _weight(member) for name, member in value.items())
    if isinstance(value, list):
        return 2 + sum(1 + _weight(item) for item in value)
    return 2 + len(value) if isinstance(value, str) else 8


def _check_depth(doc: Any) -> None:
    level = [doc]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if type(value) is dict:
                below.extend(value.values())
            elif type(value) is list:
                below.extend(value)
        if not below:
            return
        level = below
    raise _too_deep()


def _too_deep() -> PatchError:
    return PatchError("BadRequest", f"the result would nest deeper than {MAX_DEPTH} levels")
