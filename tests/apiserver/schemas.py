"""Schemas for tests that need merge keys and nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from karpool_fleet.apiserver.objects.types import FieldError, Object


class KeyedLists:
    """Knows the keys of lists by dotted path; accepts every object."""

    def __init__(self, keys: Mapping[str, Sequence[str]], openapi: Mapping[str, Any] | None = None) -> None:
        self._keys = {tuple(path.split(".")): tuple(names) for path, names in keys.items()}
        self._openapi = openapi or {}

    def prune(self, obj: Object) -> list[str]:
        return []

    def default(self, obj: Object) -> None:
        return None

    def validate(self, obj: Object) -> list[FieldError]:
        return []

    def list_map_keys(self, path: Sequence[str]) -> Sequence[str] | None:
        return self._keys.get(tuple(path))

    def openapi(self) -> Mapping[str, Any]:
        return self._openapi


POD = KeyedLists(
    {
        "spec.containers": ["name"],
        "spec.containers.env": ["name"],
        "spec.containers.ports": ["containerPort", "protocol"],
        "spec.containers.volumeMounts": ["mountPath"],
        "spec.volumes": ["name"],
        "status.conditions": ["type"],
    }
)
NODE = KeyedLists({"spec.taints": ["key"], "status.conditions": ["type"]})
DEPLOYMENT = KeyedLists({"spec.template.spec.containers": ["name"]})

WIDGET = KeyedLists(
    {},
    {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                    "args": {"type": "array", "items": {"type": "string"}},
                    "selector": {
                        "type": "object",
                        "x-kubernetes-map-type": "atomic",
                        "additionalProperties": {"type": "string"},
                    },
                    "limits": {"type": "object", "additionalProperties": {"type": "string"}},
                    "ports": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["port", "protocol"],
                        "items": {
                            "type": "object",
                            "properties": {
                                "port": {"type": "integer"},
                                "protocol": {"type": "string", "default": "TCP"},
                                "name": {"type": "string"},
                            },
                        },
                    },
                    "pools": {
                        "type": "object",
                        "additionalProperties": {
                            "type": "object",
                            "properties": {
                                "zones": {
                                    "type": "array",
                                    "x-kubernetes-list-type": "set",
                                    "items": {"type": "string"},
                                }
                            },
                        },
                    },
                },
            },
        },
    },
)
