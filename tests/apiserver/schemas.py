"""Schemas for tests of merging."""

from karpool_fleet.apiserver.kinds.builtin import BuiltinSchema
from karpool_fleet.apiserver.schema.compiled import compile_schema

POD = BuiltinSchema("", "v1", "Pod")
NODE = BuiltinSchema("", "v1", "Node")
DEPLOYMENT = BuiltinSchema("apps", "v1", "Deployment")

WIDGET = compile_schema(
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
    }
)
