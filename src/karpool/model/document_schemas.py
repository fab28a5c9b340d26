"""JSON Schemas of machine-readable documents, generated from the types that `documents` uses.

A shape is a type, or is composed of shapes: a dict is an object with these keys (a key with a trailing
question mark is optional), a list of one shape is an array, `extended` is a type with more or other keys.
"""

import inspect
import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from karpool.model.documents import key_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Shape = Any
Schema = dict[str, Any]
_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    Any: {},
    object: {},
}


@dataclass(frozen=True)
class ExtendedShape:
    base: type
    keys: Mapping[str, Shape]


def extended(base: type, **keys: Shape) -> ExtendedShape:
    """Return the document of `base`, with these keys replaced or added."""
    return ExtendedShape(base, keys)


def document_schema(kind: str, api_version: str, content: Mapping[str, Shape], about: str) -> Schema:
    """Return the schema of one kind of document. A later release may add keys that it does not name."""
    definitions: dict[str, Schema] = {}
    head = {"apiVersion": {"const": api_version}, "kind": {"const": kind}}
    body = _Writer(definitions).content_of(content)
    return {
        "$schema": DIALECT,
        "title": kind,
        "description": about,
        "type": "object",
        "properties": {**head, **body["properties"]},
        "required": ["apiVersion", "kind", *body["required"]],
        **({"$defs": dict(sorted(definitions.items()))} if definitions else {}),
    }


class _Writer:
    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions

    def of(self, shape: Shape, variables: Mapping[Any, Any] = types.MappingProxyType({})) -> Schema:
        if isinstance(shape, dict):
            return self.object_of(shape)
        if isinstance(shape, list):
            return {"type": "array", "items": self.of(shape[0])}
        if isinstance(shape, ExtendedShape):
            return self._extended(shape)
        if isinstance(shape, TypeVar):
            return self.of(variables.get(shape, Any))
        if shape in _PLAIN:
            return dict(_PLAIN[shape])
        origin: Any = get_origin(shape)
        arguments = get_args(shape)
        if origin is Annotated:
            return self.of(arguments[0], variables)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return self._union([self.of(argument, variables) for argument in arguments])
        if origin is not None and (is_dataclass(origin) or issubclass(origin, msgspec.Struct)):
            parameters = getattr(origin, "__parameters__", ()) or getattr(origin, "__type_params__", ())
            return self._named(origin, dict(zip(parameters, arguments, strict=False)))
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1], variables)}
        if origin is tuple and arguments[-1] is not Ellipsis:
            return self._places([self.of(argument, variables) for argument in arguments])
        if origin is not None and issubclass(origin, Sequence | AbstractSet):
            return {"type": "array", "items": self.of(arguments[0], variables)}
        return self._of_class(shape, variables)

    def content_of(self, content: Mapping[str, Shape]) -> Schema:
        """Return the schema of the content: what is under the empty key is merged with the other keys."""
        shape = content.get("")
        body = self.object_of({name: inner for name, inner in content.items() if name})
        if shape is None:
            return body
        inner = self._extended(shape if isinstance(shape, ExtendedShape) else ExtendedShape(shape, {}))
        return {
            "properties": {**body["properties"], **inner["properties"]},
            "required": [
                *body["required"],
                *(name for name in inner["required"] if name not in body["required"]),
            ],
        }

    def object_of(self, content: Mapping[str, Shape]) -> Schema:
        properties = {name.removesuffix("?"): self.of(shape) for name, shape in content.items()}
        required = [name for name in content if not name.endswith("?")]
        return {"type": "object", "properties": properties, "required": required}

    def _of_class(self, shape: Any, variables: Mapping[Any, Any]) -> Schema:
        if not isinstance(shape, type):
            raise TypeError(f"{shape!r} is no shape of a document")
        if issubclass(shape, Enum):
            return {"enum": [member.value for member in shape]}
        if issubclass(shape, tuple) and hasattr(shape, "_fields"):
            hints = get_type_hints(shape)
            return self._places([self.of(hints[name]) for name in shape._fields])
        if is_dataclass(shape) or issubclass(shape, msgspec.Struct):
            return self._named(shape, variables)
        if issubclass(shape, Mapping):
            return {"type": "object"}
        if issubclass(shape, str):
            return {"type": "string"}
        if issubclass(shape, Sequence | AbstractSet):
            return {"type": "array"}
        raise TypeError(f"{shape!r} is no shape of a document")

    def _named(self, shape: type, variables: Mapping[Any, Any]) -> Schema:
        name = shape.__name__ + "".join(getattr(value, "__name__", "") for value in variables.values())
        if name not in self._definitions:
            self._definitions[name] = {}  # a recursive type ends here
            self._definitions[name] = self._fields(shape, variables)
        return {"$ref": f"#/$defs/{name}"}

    def _fields(self, shape: type, variables: Mapping[Any, Any]) -> Schema:
        hints = get_type_hints(shape, include_extras=True)
        if issubclass(shape, msgspec.Struct):
            names = dict(zip(shape.__struct_encode_fields__, shape.__struct_fields__, strict=True))
        else:
            names = {field.name: field.name for field in fields(shape)}  # type: ignore[arg-type]
        properties = {key_of(name): self.of(hints[field], variables) for name, field in names.items()}
        about = (
            inspect.getdoc(shape) if shape.__doc__ and not shape.__doc__.startswith(shape.__name__) else ""
        )
        return {
            **({"description": about} if about else {}),
            "type": "object",
            "properties": properties,
            "required": list(properties),
        }

    def _extended(self, shape: ExtendedShape) -> Schema:
        schema = self._fields(shape.base, {})
        more = self.object_of(shape.keys)
        schema["properties"] = {**schema["properties"], **more["properties"]}
        named = {name.removesuffix("?") for name in shape.keys}
        kept = [name for name in schema["required"] if name not in named]
        schema["required"] = [*kept, *more["required"]]
        return schema

    def _places(self, schemas: Sequence[Schema]) -> Schema:
        return {"type": "array", "prefixItems": list(schemas), "items": False}

    def _union(self, schemas: Sequence[Schema]) -> Schema:
        if all(set(schema) == {"type"} and isinstance(schema["type"], str) for schema in schemas):
            return {"type": [schema["type"] for schema in schemas]}
        return {"anyOf": list(schemas)}
