"""Built-in resources: names, schemas, defaults."""

from typing import Any

import pytest

from karpool_fleet.apiserver.kinds import builtin
from karpool_fleet.apiserver.kinds.builtin_defaults import DEFAULTS, FILLS, VALUES
from karpool_fleet.apiserver.kinds.builtin_descriptions import DESCRIPTIONS
from karpool_fleet.apiserver.objects.types import ResourceType
from karpool_fleet.apiserver.schema.field_types import field_types

TYPES = {(kind.group, kind.version, kind.kind): kind for kind in builtin.builtin_types()}


def kind(name: str, group: str = "", version: str = "v1") -> ResourceType:
    return TYPES[group, version, name]


def pod(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": None},
        "spec": {"containers": [{"name": "main", "image": "nginx"}], **spec},
        "status": {},
    }


def complete(resource: ResourceType, obj: dict[str, Any]) -> list[str]:
    """Prune, default and validate; the fields with problems."""
    assert resource.schema is not None
    assert resource.schema.prune(obj) == []
    resource.schema.default(obj)
    return [error.field for error in resource.schema.validate(obj)]


@pytest.mark.parametrize("resource", TYPES.values(), ids=lambda r: r.group_resource)
def test_every_schema_compiles(resource: ResourceType) -> None:
    assert resource.schema is not None
    obj: dict[str, Any] = {"metadata": {"name": "x", "nonsense": 1}}

    assert resource.schema.prune(obj) == ["metadata.nonsense"]
    assert "metadata" in resource.schema.openapi()["properties"]


def test_a_pod_gets_the_defaults_that_everybody_relies_on() -> None:
    obj = pod()

    assert complete(kind("Pod"), obj) == []
    spec = obj["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert "creationTimestamp" not in obj["metadata"]


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1.25", "IfNotPresent"),
        ("registry:5000/nginx", "Always"),
        ("registry:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:00", "IfNotPresent"),
    ],
)
def test_the_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    obj = pod(containers=[{"name": "main", "image": image}])

    complete(kind("Pod"), obj)

    assert obj["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_limits_are_also_requests_and_numbers_become_quantities() -> None:
    resources = {"limits": {"cpu": 2, "memory": "1Gi"}, "requests": {"cpu": 0.5}}
    obj = pod(containers=[{"name": "main", "image": "x", "resources": resources}])

    assert complete(kind("Pod"), obj) == []
    assert obj["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "memory": "1Gi"},
        "requests": {"cpu": "0.5", "memory": "1Gi"},
    }


def test_a_deployment_gets_its_strategy() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    obj = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}

    assert complete(kind("Deployment", "apps"), obj) == []
    spec: dict[str, Any] = obj["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Always"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"image": "x"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "Main", "image": "x"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "a", "image": "x"}] * 2}, "spec.containers[1]"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"nodeSelector": {"a": 1}}, "spec.nodeSelector[a]"),
        ({"tolerations": [{"effect": "Never"}]}, "spec.tolerations[0].effect"),
        ({"priority": "high"}, "spec.priority"),
        ({"overhead": {"cpu": "lots"}}, "spec.overhead[cpu]"),
    ],
)
def test_bad_pods_are_refused_by_field(spec: dict[str, Any], field: str) -> None:
    assert field in complete(kind("Pod"), pod(**spec))


def test_a_status_may_leave_out_what_its_document_requires() -> None:
    obj = pod() | {"status": {"containerStatuses": [{"name": "main"}], "conditions": [{"type": "Ready"}]}}

    assert complete(kind("Pod"), obj) == []
    obj["status"]["containerStatuses"][0]["ready"] = "yes"
    assert complete(kind("Pod"), obj) == ["status.containerStatuses[0].ready"]


def test_what_go_allows_twice_is_allowed_twice() -> None:
    repeated = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    obj = pod(containers=[{"name": "main", "image": "x", "env": repeated}])

    assert complete(kind("Pod"), obj) == []


def test_merge_keys_are_those_of_the_api() -> None:
    root = field_types(kind("Pod").schema)
    spec = root.child("spec")

    assert spec.child("containers").keys == ("name",)
    assert spec.child("containers").child("ports").keys == ("containerPort", "protocol")
    assert spec.child("volumes").keys == ("name",)
    assert spec.child("tolerations").keys is None
    assert root.child("metadata").child("ownerReferences").keys == ("uid",)


def test_the_tables_name_definitions_and_fields_that_exist() -> None:
    known = {".".join(name.split(".")[-3:]): schema for name, schema in builtin.definitions().items()}
    tables = (DEFAULTS, VALUES, DESCRIPTIONS)

    assert set().union(*tables, FILLS) <= known.keys()
    for table in tables:
        for name, fields in table.items():
            assert set(fields) - {""} <= known[name].get("properties", {}).keys(), name


def test_every_kind_says_what_it_is() -> None:
    undescribed = [
        resource.group_resource
        for resource in TYPES.values()
        if not builtin.definitions()[
            builtin.definition_name(resource.group, resource.version, resource.kind)
        ].get("description")
    ]

    assert undescribed == []
