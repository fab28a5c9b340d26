"""One bad object is reported and skipped; the others go on.

A `Problem` is what a person needs to find and mend the object: which one, which
field, its value, and what would be right.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from karpool.model.errors import Invalid
from karpool.model.meta import WireObject, convert

T = TypeVar("T")
W = TypeVar("W", bound=WireObject)


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str
    name: str  # namespace/name, as far as they could be read
    field: str
    value: object
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {Invalid(self.field, self.value, self.reason)}"


def problem_of(obj: WireObject, error: Invalid, kind: str = "") -> Problem:
    """What is wrong with an object that decoded."""
    shown = kind or obj.kind or type(obj).__name__
    return Problem(shown, obj.metadata.key or "(no name)", error.path, error.value, error.reason)


def decode_all(raw_objects: Iterable[Any], into: type[T]) -> tuple[list[T], list[Problem]]:
    """Decoded JSON or YAML objects as structs, in order, and a problem for each that was skipped."""
    objects: list[T] = []
    problems: list[Problem] = []
    for index, raw in enumerate(raw_objects):
        try:
            objects.append(convert(raw, into))
        except Invalid as error:
            problems.append(_raw_problem(raw, into.__name__, index, error))
    return objects, problems


def compile_all(objects: Iterable[W], compiled: Callable[[W], T]) -> tuple[list[T], list[Problem]]:
    """`compiled` of each object (`shape_of`, `pool_of`, ...), and a problem for each that was skipped."""
    results: list[T] = []
    problems: list[Problem] = []
    for obj in objects:
        try:
            results.append(compiled(obj))
        except Invalid as error:
            problems.append(problem_of(obj, error))
    return results, problems


def _raw_problem(raw: Any, kind: str, index: int, error: Invalid) -> Problem:
    meta = raw.get("metadata") if isinstance(raw, dict) else None
    if not isinstance(meta, dict):
        meta = {}
    parts = [part for part in (meta.get("namespace"), meta.get("name")) if isinstance(part, str) and part]
    name = "/".join(parts)[:320] or f"items[{index}]"
    return Problem(kind, name, error.path, error.value, error.reason)
