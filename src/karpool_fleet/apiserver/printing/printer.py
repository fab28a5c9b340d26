"""The printer interface: column definitions and the function that fills them.

Printers leave out the name, which is the first column unless `named` is false. Columns of priority 1 appear
only with `-o wide`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from karpool_fleet.apiserver.objects.types import Object

Cell = str | int | float | bool | None


class Printed(NamedTuple):
    """One column definition."""

    name: str
    type: str = "string"
    priority: int = 0
    format: str = ""
    description: str = ""


class Printer(NamedTuple):
    columns: Sequence[Printed]
    cells: Callable[[Object, float], list[Cell]]
    named: bool = True


def columns(names: str, integers: str = "") -> tuple[Printed, ...]:
    """Columns from comma-separated names; a star marks those for `-o wide`."""
    numbers = set(integers.split(","))
    listed = [(name.rstrip("*"), int(name.endswith("*"))) for name in names.split(",")]
    return tuple(
        Printed(name, "integer" if name in numbers else "string", priority) for name, priority in listed
    )


def spec_of(obj: Object) -> Object:
    return obj.get("spec") or {}


def status_of(obj: Object) -> Object:
    return obj.get("status") or {}


def count(value: Any) -> int:
    return value if isinstance(value, int) else 0
