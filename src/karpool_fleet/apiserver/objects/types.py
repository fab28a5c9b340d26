"""Resource types of the server: names, scope, schema and columns.

Built-in types and CustomResourceDefinitions become the same `ResourceType`, so that CRUD, discovery, printing
and OpenAPI treat them alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from karpool_fleet.apiserver.schema.structure import SchemaNode

Object = dict[str, Any]  # one decoded API object


@dataclass(frozen=True, slots=True)
class FieldError:
    """One entry of a 422 Status: `details.causes[]`."""

    field: str  # "spec.template.spec.containers[0].name"
    value: object
    reason: str  # FieldValueRequired, FieldValueInvalid, FieldValueNotSupported, FieldValueTypeInvalid...
    detail: str  # in our own words


class Schema(Protocol):
    """A structural schema, compiled once and applied to many objects."""

    @property
    def root(self) -> "SchemaNode":
        """The tree from which it was compiled."""

    def prune(self, obj: Object) -> list[str]:
        """Drop unknown fields in place; return their paths (for fieldValidation=Warn/Strict)."""

    def default(self, obj: Object) -> None:
        """Fill defaults in place."""

    def validate(self, obj: Object, old: Object | None = None) -> list[FieldError]:
        """Validate an object; transition rules compare it with `old`, the stored object of an update."""

    def openapi(self) -> Mapping[str, Any]:
        """The schema as OpenAPI v3 (x-kubernetes-* extensions included)."""


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One server-side printed column of a CRD (additionalPrinterColumns)."""

    name: str
    type: str  # string, integer, number, boolean, date
    json_path: str
    priority: int = 0
    format: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    spec_replicas: str
    status_replicas: str
    selector: str = ""


@dataclass(frozen=True, slots=True)
class ResourceType:
    group: str  # "" for core
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()  # "status", "scale", "binding", "eviction"...
    schema: Schema | None = None
    columns: tuple[PrinterColumn, ...] = ()  # CRDs only; built-in tables live in tables.py
    scale: ScalePaths | None = None
    custom: bool = False  # from a CustomResourceDefinition
    generation: bool = True  # metadata.generation counts spec changes

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural
