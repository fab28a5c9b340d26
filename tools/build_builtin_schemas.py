"""Derive the built-in schemas of the embedded API server from a Kubernetes OpenAPI document.

    python tools/build_builtin_schemas.py path/to/api/openapi-spec/swagger.json

The document is part of the Go module k8s.io/kubernetes (`go mod download
k8s.io/kubernetes@VERSION`). Only facts are kept: field names, types, formats, required fields
and merge keys of the kinds we serve and of what they refer to. Sentences are dropped; our own
descriptions are in `builtin_descriptions.py`. The output is byte for byte reproducible.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
OUTPUT = ROOT / "src/karpool_fleet/apiserver/data/builtin_schemas.json.gz"

KEPT = (
    "type",
    "format",
    "required",
    "items",
    "additionalProperties",
    "properties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
)
PREFIX = "#/definitions/"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
# Objects of any content: the schema language inside CustomResourceDefinitions refers to itself, and
# the others hold whatever their owners put there.
ANYTHING = (
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
)


def facts(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without prose."""
    if "$ref" in schema:
        kept = {key: schema[key] for key in KEPT if key in schema and key.startswith("x-")}
        return {"$ref": schema["$ref"].removeprefix(PREFIX), **kept}
    kept = {key: schema[key] for key in KEPT if key in schema}
    if "properties" in kept:
        kept["properties"] = {name: facts(child) for name, child in sorted(kept["properties"].items())}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = facts(kept[key])
    return kept


def references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"]} if "$ref" in schema else set()
        return own.union(*map(references, schema.values()))
    return set()


def derive(document: dict[str, Any], wanted: set[tuple[str, str, str]]) -> dict[str, Any]:
    """Definitions by name, and the name of each wanted (group, version, kind)."""
    kinds: dict[str, str] = {}
    for name, schema in document["definitions"].items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            key = (gvk["group"], gvk["version"], gvk["kind"])
            if key in wanted:
                kinds["/".join(key)] = name
    if missing := wanted - {tuple(key.split("/")) for key in kinds}:
        raise SystemExit(f"the document does not define {sorted(missing)}")
    definitions: dict[str, Any] = {}
    pending = sorted(set(kinds.values()))
    while pending:
        name = pending.pop()
        if name in definitions:
            continue
        schema = facts(document["definitions"][name])
        if name in ANYTHING:
            schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            if name.endswith(".JSON"):
                del schema["type"]
        elif name == QUANTITY:
            schema = {"format": "quantity"}
        definitions[name] = schema
        pending.extend(references(schema))
    return {
        "kinds": dict(sorted(kinds.items())),
        "definitions": dict(sorted(definitions.items())),
    }


def main() -> None:
    from karpool_fleet.apiserver.kinds.builtin_kinds import schema_kinds

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("swagger", type=Path)
    document = json.loads(parser.parse_args().swagger.read_text())
    derived = derive(document, set(schema_kinds()))
    text = json.dumps(derived, separators=(",", ":")).encode()
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_bytes(gzip.compress(text, 9, mtime=0))
    print(f"{OUTPUT.name}: {len(derived['definitions'])} definitions, {OUTPUT.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
