"""Static types of expressions: what is known before an expression is evaluated on an object."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CelType:
    """`dyn` and `any` match every type; a `parameter` stands for one type throughout a signature."""

    name: str
    arguments: "tuple[CelType, ...]" = ()
    fields: "Mapping[str, CelType]" = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})" if self.arguments else self.name

    @property
    def is_open(self) -> bool:
        return self.name in ("dyn", "any")


DYN, ANY = CelType("dyn"), CelType("any")
BOOL, INT, UINT, DOUBLE = CelType("bool"), CelType("int"), CelType("uint"), CelType("double")
STRING, NULL = CelType("string"), CelType("null")
QUANTITY, SEMVER = CelType("quantity"), CelType("semver")
ITEM, OTHER = CelType("parameter", (CelType("A"),)), CelType("parameter", (CelType("B"),))

Bindings = dict[CelType, CelType]


def list_of(item: CelType) -> CelType:
    return CelType("list", (item,))


def map_of(key: CelType, value: CelType) -> CelType:
    return CelType("map", (key, value))


def optional_of(value: CelType) -> CelType:
    return CelType("optional", (value,))


def accepts(expected: CelType, actual: CelType, bound: Bindings) -> bool:
    """Whether a value of one type may be used for another declared type; binds parameters."""
    if expected.name == "parameter":
        earlier = bound.get(expected)
        if earlier is None or (earlier.is_open and not actual.is_open):
            bound[expected] = actual
            return True
        return accepts(earlier, actual, bound) or accepts(actual, earlier, bound)
    if expected.is_open or actual.is_open:
        return True
    if expected.name != actual.name or len(expected.arguments) != len(actual.arguments):
        return False
    return all(map(lambda one, other: accepts(one, other, bound), expected.arguments, actual.arguments))


def resolved(declared: CelType, bound: Bindings) -> CelType:
    """Return the type with its parameters replaced; an unbound parameter is dyn."""
    if declared.name == "parameter":
        return bound.get(declared, DYN)
    if not declared.arguments:
        return declared
    return CelType(declared.name, tuple(resolved(argument, bound) for argument in declared.arguments))


def joined(types: "list[CelType]", *, strict: bool = False) -> CelType | None:
    """Return the common type of several values; None if there is none.

    `strict` is for a list or a map, where a value of unknown type only goes with others of unknown type.
    """
    common = DYN if not types else types[0]
    for other in types[1:]:
        if strict and common.is_open != other.is_open:
            return None
        if common.is_open or other.is_open:
            common = ANY if ANY in (common, other) else DYN
        elif not accepts(common, other, {}):
            return None
    return common
