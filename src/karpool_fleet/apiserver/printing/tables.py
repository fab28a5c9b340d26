"""Server-side printing: lists as tables with kubectl's usual columns.

`table` works for every resource: built-in kinds have their own columns (`*_columns`), custom ones those of
their definition, all others name and age. A row that cannot be printed shows its name and `<unknown>`; the
other rows are not affected.
"""

from collections.abc import Callable, Sequence
from typing import Any

from karpool_fleet.apiserver.objects.types import Object, PrinterColumn, ResourceType
from karpool_fleet.apiserver.printing.cell_text import age, age_of
from karpool_fleet.apiserver.printing.cluster_columns import CLUSTER
from karpool_fleet.apiserver.printing.json_paths import BadPath, compile_path
from karpool_fleet.apiserver.printing.network_columns import NETWORK
from karpool_fleet.apiserver.printing.printer import Cell, Printed
from karpool_fleet.apiserver.printing.storage_columns import STORAGE
from karpool_fleet.apiserver.printing.workload_columns import WORKLOADS

Cells = Callable[[Object, float], list[Cell]]

PRINTERS = {**WORKLOADS, **NETWORK, **STORAGE, **CLUSTER}
_NAME = Printed("Name", "string", format="name", description="Unique within the namespace and kind.")
_AGE = Printed("Age", "string", description="Time since the object was created.")


def table(
    resource: ResourceType,
    items: Sequence[Object],
    *,
    now: float,
    list_metadata: Object | None = None,
    include_object: str = "Metadata",
    api_version: str = "meta.k8s.io/v1",
) -> Object:
    """A `Table` of `items`; `include_object` is None, Metadata or Object."""
    columns, cells = _printer(resource)
    return {
        "kind": "Table",
        "apiVersion": api_version,
        "metadata": list_metadata or {},
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": [
            {"cells": _cells(item, cells, len(columns), now), **_included(item, include_object, api_version)}
            for item in items
        ],
    }


def _cells(item: Object, cells: Cells, width: int, now: float) -> list[Cell]:
    try:
        return cells(item, now)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError):
        return [item.get("metadata", {}).get("name", "<unknown>"), *["<unknown>"] * (width - 1)]


def _included(item: Object, include_object: str, api_version: str) -> Object:
    if include_object == "None":
        return {}
    if include_object == "Object":
        return {"object": item}
    metadata = item.get("metadata", {})
    return {"object": {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": metadata}}


def _definition(column: Printed) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description or column.name,
        "priority": column.priority,
    }


def _printer(resource: ResourceType) -> tuple[Sequence[Printed], Cells]:
    if resource.custom:
        return _custom(resource.columns)
    printer = PRINTERS.get((resource.group, resource.kind))
    if printer is None:
        return (_NAME, _AGE), lambda obj, now: [_name(obj), age_of(obj, now)]
    if not printer.named:
        return printer.columns, printer.cells
    others = printer.cells
    return (_NAME, *printer.columns), lambda obj, now: [_name(obj), *others(obj, now)]


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


# Custom resources --------------------------------------------------------------------------------


def _custom(columns: Sequence[PrinterColumn]) -> tuple[Sequence[Printed], Cells]:
    if not columns:
        return (_NAME, _AGE), lambda obj, now: [_name(obj), age_of(obj, now)]
    printed = [_NAME, *(_printed(column) for column in columns)]
    readers = [_reader(column) for column in columns]

    def cells(obj: Object, now: float) -> list[Cell]:
        return [_name(obj), *(read(obj, now) for read in readers)]

    return printed, cells


def _printed(column: PrinterColumn) -> Printed:
    return Printed(column.name, column.type, column.priority, column.format, column.description)


def _reader(column: PrinterColumn) -> Callable[[Object, float], Cell]:
    try:
        find = compile_path(column.json_path)
    except BadPath:
        return lambda _obj, _now: None
    kind = column.type

    def read(obj: Object, now: float) -> Cell:
        values = find(obj)
        if not values or values[0] is None:
            return None
        return _cell(kind, values, now)

    return read


def _cell(kind: str, found: list[Any], now: float) -> Cell:
    """Return one value in the type of the column, or an empty cell if it has another type."""
    value = found[0]
    match kind:
        case "integer":
            return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "number":
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            return age(value, now) if isinstance(value, str) else "<invalid>"
    if isinstance(value, str) and len(found) == 1:
        return value
    return ",".join(_text(item) for item in found)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_text(item)}" for key, item in sorted(value.items())) + "]"
    if isinstance(value, list):
        return "[" + ",".join(f'"{item}"' if isinstance(item, str) else _text(item) for item in value) + "]"
    return str(value)
