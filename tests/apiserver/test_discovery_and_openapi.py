"""Discovery and OpenAPI documents, in the forms clients ask for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.documents import discovery, openapi
from karpool_fleet.apiserver.documents.documents import Documents
from karpool_fleet.apiserver.documents.openapi_protobuf import encode_document
from karpool_fleet.apiserver.kinds import crds
from karpool_fleet.apiserver.kinds.builtin import builtin_types
from karpool_fleet.apiserver.kinds.registry import Registry

WIDGETS = yaml.safe_load((Path(__file__).parent / "crds" / "widgets.yaml").read_text())
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"


@pytest.fixture(scope="module")
def documents() -> Documents:
    return Documents(Registry([*builtin_types(), *crds.resource_types(WIDGETS)]), "127.0.0.1:6443")


def get(documents: Documents, path: str, accept: str = "", **headers: str) -> HttpResponse:
    answer = documents.respond(HttpRequest("GET", path, headers={"accept": accept, **headers}))
    assert answer is not None
    return answer


def read(documents: Documents, path: str, accept: str = "") -> Any:
    return json.loads(get(documents, path, accept).body)


def test_classic_discovery_walks_from_groups_to_resources(documents: Documents) -> None:
    assert read(documents, "/api")["versions"] == ["v1"]
    groups = {group["name"]: group for group in read(documents, "/apis")["groups"]}
    assert [v["version"] for v in groups["autoscaling"]["versions"]] == ["v2", "v1"]
    assert groups["example.com"]["preferredVersion"]["version"] == "v1"
    assert read(documents, "/apis/apps")["kind"] == "APIGroup"
    pods = {entry["name"]: entry for entry in read(documents, "/api/v1")["resources"]}
    assert pods["pods"]["shortNames"] == ["po"]
    assert pods["pods/eviction"] | {"verbs": 0} == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "kind": "Eviction",
        "group": "policy",
        "version": "v1",
        "verbs": 0,
    }


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
def test_aggregated_discovery_says_the_same_at_once(documents: Documents, version: str) -> None:
    answer = get(documents, "/apis", AGGREGATED.format(version) + ",application/json")
    body = json.loads(answer.body)

    assert answer.headers["content-type"] == AGGREGATED.format(version)
    assert body["apiVersion"] == f"apidiscovery.k8s.io/{version}"
    for group in body["items"]:
        for served in group["versions"]:
            classic = read(documents, f"/apis/{group['metadata']['name']}/{served['version']}")["resources"]
            main = {entry["name"] for entry in classic if "/" not in entry["name"]}
            assert {entry["resource"] for entry in served["resources"]} == main


def test_plain_json_first_means_classic(documents: Documents) -> None:
    accept = "application/json, " + AGGREGATED.format("v2")

    assert read(documents, "/apis", accept)["kind"] == "APIGroupList"


def test_questions_can_only_be_asked(documents: Documents) -> None:
    listed = read(documents, "/apis/authorization.k8s.io/v1")["resources"]

    assert all(entry["verbs"] == ["create"] for entry in listed)
    assert "selfsubjectaccessreviews" in {entry["name"] for entry in listed}


def test_what_is_not_served_is_not_a_document(documents: Documents) -> None:
    for path in ("/apis/nowhere", "/apis/apps/v9", "/api/v2", "/openapi/v3/apis/nowhere/v1", "/metrics"):
        assert documents.respond(HttpRequest("GET", path)) is None
    assert documents.respond(HttpRequest("POST", "/apis")) is None


@pytest.mark.parametrize(
    "path", ["/api", "/apis", "/api/v1", "/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"]
)
def test_a_client_that_has_the_document_gets_304(documents: Documents, path: str) -> None:
    tag = get(documents, path).headers["etag"]

    again = get(documents, path, **{"if-none-match": tag})

    assert (again.status, again.body) == (304, b"")
    assert get(documents, path, **{"if-none-match": '"other"'}).status == 200


def test_paths_that_lead_nowhere_are_not_remembered(documents: Documents) -> None:
    for index in range(100):
        documents.respond(HttpRequest("GET", f"/apis/nowhere-{index}"))

    assert all("nowhere" not in path for path, _ in documents._made)


def test_documents_follow_the_registry() -> None:
    registry = Registry(builtin_types())
    documents = Documents(registry)
    before = get(documents, "/apis").headers["etag"]

    registry.add(crds.resource_types(WIDGETS))

    assert get(documents, "/apis").headers["etag"] != before
    assert read(documents, "/apis/example.com/v1")["resources"][0]["name"] == "widgets"


def test_versions_are_preferred_as_kubernetes_prefers_them() -> None:
    versions = ["v1alpha1", "foo", "v1", "v2beta1", "v11alpha2", "v10", "v1beta2", "v2"]

    ordered = sorted(versions, key=discovery.version_order)

    assert ordered == ["v10", "v2", "v1", "v2beta1", "v1beta2", "v11alpha2", "v1alpha1", "foo"]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_leads_somewhere(documents: Documents) -> None:
    old = read(documents, "/openapi/v2")
    assert {ref.removeprefix("#/definitions/") for ref in references(old)} <= old["definitions"].keys()
    for path in read(documents, "/openapi/v3")["paths"]:
        new = read(documents, f"/openapi/v3/{path}")
        known = new["components"]["schemas"].keys()
        assert {ref.removeprefix("#/components/schemas/") for ref in references(new)} <= known


def test_version_2_says_nothing_that_only_version_3_knows(documents: Documents) -> None:
    text = json.dumps(read(documents, "/openapi/v2")["definitions"])

    for word in ('"oneOf"', '"anyOf"', '"nullable"', "x-karpool", "components/schemas"):
        assert word not in text


def test_custom_kinds_are_described_with_the_fields_of_every_object(documents: Documents) -> None:
    schema = read(documents, "/openapi/v3/apis/example.com/v1")["components"]["schemas"][
        "com.example.v1.Widget"
    ]

    assert schema["x-kubernetes-group-version-kind"] == [
        {"group": "example.com", "version": "v1", "kind": "Widget"}
    ]
    assert {"apiVersion", "kind", "metadata", "spec", "status"} <= schema["properties"].keys()


def test_patch_types_differ_between_built_in_and_custom_kinds(documents: Documents) -> None:
    def forms(path: str, item: str) -> set[str]:
        operation = read(documents, f"/openapi/v3/{path}")["paths"][item]["patch"]
        return set(operation["requestBody"]["content"])

    strategic = "application/strategic-merge-patch+json"
    assert strategic in forms("api/v1", "/api/v1/nodes/{name}")
    item = "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"
    assert strategic not in forms("apis/example.com/v1", item)


def decode(data: bytes) -> list[tuple[int, Any]]:
    """The fields of one protobuf message: numbers for varints, bytes for the rest."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 0x80:
                return value, at

    fields: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
            fields.append((key >> 3, value))
        elif key & 7 == 1:
            fields.append((key >> 3, data[at : at + 8]))
            at += 8
        else:
            assert key & 7 == 2
            size, at = varint(at)
            fields.append((key >> 3, data[at : at + size]))
            at += size
    return fields


def named(message: bytes, field: int) -> dict[str, bytes]:
    entries = [dict(decode(value)) for number, value in decode(message) if number == field]
    return {entry[1].decode(): entry[2] for entry in entries}


def test_the_protobuf_form_holds_the_same_definitions(documents: Documents) -> None:
    plain = read(documents, "/openapi/v2")
    answer = get(documents, "/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
    document = dict(decode(answer.body))

    definitions = named(document[9], 1)
    paths = named(document[8], 2)

    assert "@" not in answer.headers["content-type"]
    assert document[1] == b"2.0"
    assert list(definitions) == list(plain["definitions"])
    assert list(paths) == list(plain["paths"])
    for name, encoded in definitions.items():
        schema = dict(decode(encoded))
        properties = named(schema[25], 1) if 25 in schema else {}
        assert list(properties) == list(plain["definitions"][name].get("properties", {}))


def test_every_keyword_of_a_schema_is_encoded() -> None:
    schema = {
        "type": "string",
        "format": "f",
        "description": "d",
        "default": {"a": 1},
        "maximum": 2.5,
        "minLength": 300,
        "exclusiveMaximum": True,
        "required": ["a", "b"],
        "enum": ["x", 1],
        "additionalProperties": True,
        "items": {"type": "integer"},
        "x-kubernetes-list-map-keys": ["k"],
    }
    document = {
        "swagger": "2.0",
        "info": {"title": "t", "version": "v"},
        "paths": {},
        "definitions": {"S": schema},
    }

    fields = decode(named(dict(decode(encode_document(document)))[9], 1)["S"])

    single = dict(fields)
    assert single[2] == b"f"
    assert single[12] == 300
    assert single[8] == 1
    assert [value for number, value in fields if number == 19] == [b"a", b"b"]
    assert [dict(decode(value))[2] for number, value in fields if number == 20] == [b'"x"\n', b"1\n"]
    assert dict(decode(single[21]))[2] == 1
    assert dict(decode(dict(decode(single[31]))[2]))[2] == b'["k"]\n'


def test_operations_name_the_parameters_kubectl_looks_for() -> None:
    document = openapi.v2_document(builtin_types())

    patch = document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert {"dryRun", "fieldManager", "fieldValidation", "force"} == {p["name"] for p in patch["parameters"]}
    assert patch["x-kubernetes-group-version-kind"] == {"group": "", "version": "v1", "kind": "Pod"}
