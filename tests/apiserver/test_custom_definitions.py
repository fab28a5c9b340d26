"""Which CustomResourceDefinitions are accepted, and what they become."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from karpool_fleet.apiserver.kinds import crds
from karpool_fleet.apiserver.kinds.builtin import builtin_types
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, KARPENTER, bundled_crds

WIDGETS = yaml.safe_load((Path(__file__).parent / "crds" / "widgets.yaml").read_text())
DEFINITION = next(kind for kind in builtin_types() if kind.kind == "CustomResourceDefinition")
NOW = 1_767_225_600.0


def definition() -> dict[str, Any]:
    return copy.deepcopy(WIDGETS)


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def spec_of(crd: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema_of(crd)["properties"]["spec"]["properties"]
    return properties


def fields(crd: dict[str, Any], old: dict[str, Any] | None = None) -> set[str]:
    return {error.field for error in crds.validate_crd(crd, old)}


def test_the_example_is_acceptable() -> None:
    assert crds.validate_crd(definition()) == []


V0 = "spec.versions[0]"
SCHEMA = f"{V0}.schema.openAPIV3Schema"
SPEC = f"{SCHEMA}.properties[spec].properties"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda c: c["metadata"].update(name="other.example.com"), "metadata.name"),
        (lambda c: c["spec"].update(group="example"), "spec.group"),
        (lambda c: c["spec"].update(scope="Galaxy"), "spec.scope"),
        (lambda c: c["spec"]["names"].update(plural="Widgets"), "spec.names.plural"),
        (lambda c: c["spec"]["names"].pop("kind"), "spec.names.kind"),
        (lambda c: c["spec"]["names"].update(shortNames=["W!"]), "spec.names.shortNames[0]"),
        (lambda c: c["spec"].update(versions=[]), "spec.versions"),
        (lambda c: c["spec"]["versions"][1].update(storage=True), "spec.versions"),
        (lambda c: c["spec"]["versions"][0].update(storage=False), "spec.versions"),
        (lambda c: c["spec"]["versions"][1].update(name="v1"), "spec.versions[1].name"),
        (lambda c: c["spec"].update(conversion={"strategy": "Webhook"}), "spec.conversion.strategy"),
        (lambda c: c["spec"]["versions"][0].pop("schema"), SCHEMA),
        (lambda c: schema_of(c).update(type="string"), f"{SCHEMA}.type"),
        (lambda c: spec_of(c)["size"].pop("type"), f"{SPEC}[size].type"),
        (lambda c: spec_of(c)["size"].update({"$ref": "#/x"}), f"{SPEC}[size]"),
        (lambda c: spec_of(c)["colours"].pop("items"), f"{SPEC}[colours].items"),
        (lambda c: spec_of(c)["colours"].update(uniqueItems=True), f"{SPEC}[colours].uniqueItems"),
        (
            lambda c: spec_of(c)["labels"].update(properties={"a": {"type": "string"}}),
            f"{SPEC}[labels].additionalProperties",
        ),
        (lambda c: spec_of(c)["owner"].update(pattern="("), f"{SPEC}[owner].pattern"),
        (lambda c: spec_of(c)["owner"].update(pattern="(?=x)"), f"{SPEC}[owner].pattern"),
        (lambda c: spec_of(c)["mode"].update(default="medium"), f"{SPEC}[mode].default"),
        (lambda c: spec_of(c)["choice"].update(default={"a": "1", "c": "x"}), f"{SPEC}[choice].default.c"),
        (lambda c: spec_of(c)["choice"]["oneOf"].append({"type": "object"}), f"{SPEC}[choice].oneOf[2].type"),
        (
            lambda c: spec_of(c)["ports"].pop("x-kubernetes-list-map-keys"),
            f"{SPEC}[ports].x-kubernetes-list-map-keys",
        ),
        (lambda c: spec_of(c)["ports"]["items"].pop("required"), f"{SPEC}[ports].items.properties[port]"),
        (lambda c: spec_of(c)["size"].update(type="int"), f"{SPEC}[size].type"),
        (
            lambda c: c["spec"]["versions"][0]["additionalPrinterColumns"][0].update(type="list"),
            f"{V0}.additionalPrinterColumns[0].type",
        ),
        (
            lambda c: c["spec"]["versions"][0]["additionalPrinterColumns"][0].update(jsonPath="spec"),
            f"{V0}.additionalPrinterColumns[0].jsonPath",
        ),
        (
            lambda c: c["spec"]["versions"][0]["subresources"]["scale"].update(specReplicasPath=".status.x"),
            f"{V0}.subresources.scale.specReplicasPath",
        ),
        (
            lambda c: schema_of(c)["properties"].update(
                metadata={"type": "object", "properties": {"labels": {"type": "object"}}}
            ),
            f"{SCHEMA}.properties[metadata].properties[labels]",
        ),
    ],
)
def test_each_fault_is_found_where_it_is(change: Callable[[dict[str, Any]], Any], field: str) -> None:
    crd = definition()

    change(crd)

    assert field in fields(crd)


def test_a_default_that_nests_without_end_is_refused() -> None:
    crd = definition()
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    spec_of(crd)["extra"]["default"] = deep

    assert SCHEMA in fields(crd)


def test_names_and_scope_are_settled_once_accepted() -> None:
    old, new = definition(), definition()
    crds.accept(old, NOW)
    new["spec"]["scope"] = "Cluster"
    new["spec"]["names"]["kind"] = "Gadget"

    assert fields(new, old) == {"spec.scope", "spec.names.kind"}


def test_a_version_with_stored_objects_cannot_disappear() -> None:
    old, new = definition(), definition()
    crds.accept(old, NOW)
    new["spec"]["versions"] = [{**new["spec"]["versions"][1], "storage": True}]

    assert fields(new, old) == {"spec.versions"}


def test_accepting_writes_what_clients_wait_for() -> None:
    crd = definition()

    crds.accept(crd, NOW)
    crds.accept(crd, NOW + 100)

    status = crd["status"]
    assert status["acceptedNames"]["singular"] == "widget"
    assert status["acceptedNames"]["listKind"] == "WidgetList"
    assert status["storedVersions"] == ["v1"]
    assert [(c["type"], c["status"], c["lastTransitionTime"]) for c in status["conditions"]] == [
        ("NamesAccepted", "True", "2026-01-01T00:00:00Z"),
        ("Established", "True", "2026-01-01T00:00:00Z"),
    ]


def test_rules_that_are_not_evaluated_are_shown_in_the_status() -> None:
    crd = definition()
    rules = schema_of(crd)["properties"]["spec"]["x-kubernetes-validations"]
    rules.append({"rule": "duration(self.amount) > duration('1h')"})

    crds.accept(crd, NOW)
    told = next(c for c in crd["status"]["conditions"] if c["type"] == crds.RULES)
    rules.pop()
    crds.accept(crd, NOW)

    assert (told["status"], told["reason"]) == ("False", "UnsupportedRules")
    assert 'v1 spec: "duration(self.amount)' in told["message"]
    assert all(c["type"] != crds.RULES for c in crd["status"]["conditions"])


def test_each_served_version_becomes_a_type() -> None:
    stable, beta = crds.resource_types(definition())

    assert (stable.version, beta.version) == ("v1", "v1beta1")
    assert stable.subresources == {"status", "scale"}
    assert beta.subresources == frozenset()
    assert stable.scale is not None
    assert stable.scale.spec_replicas == ".spec.size"
    assert [column.name for column in stable.columns] == ["Size", "Ready", "Colours", "Age"]
    assert (stable.short_names, stable.categories, stable.custom) == (("wd",), ("toys",), True)


def test_a_version_that_is_not_served_is_no_type() -> None:
    crd = definition()
    crd["spec"]["versions"][1]["served"] = False

    assert [kind.version for kind in crds.resource_types(crd)] == ["v1"]


@pytest.mark.parametrize("crd", bundled_crds(), ids=lambda crd: crd["metadata"]["name"])
def test_bundled_definitions_are_acceptable_and_fully_understood(crd: dict[str, Any]) -> None:
    assert DEFINITION.schema is not None

    assert DEFINITION.schema.prune(crd) == []
    assert DEFINITION.schema.validate(crd) == []
    assert crds.validate_crd(crd) == []
    for kind in crds.resource_types(crd):
        assert isinstance(kind.schema, crds.CustomSchema)
        assert kind.schema.unsupported_rules() == []


def test_bundled_definitions_are_copies_and_found_by_name() -> None:
    (first,) = bundled_crds(["nodepools.karpenter.sh"])
    first["spec"].clear()

    assert bundled_crds(["nodepools.karpenter.sh"])[0]["spec"]["group"] == "karpenter.sh"
    assert [crd["metadata"]["name"] for crd in bundled_crds()] == [*KARPENTER, *KARMADA]
    with pytest.raises(KeyError):
        bundled_crds(["nodes.example.com"])


def pool(**spec: Any) -> dict[str, Any]:
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    template = {"spec": {"nodeClassRef": reference, "requirements": []}}
    return {"metadata": {"name": "p"}, "spec": {"template": template, **spec}}


def requirement(**fields: Any) -> dict[str, Any]:
    reference = {"group": "g", "kind": "K", "name": "n"}
    template = {
        "spec": {"nodeClassRef": reference, "requirements": [{"key": "a", "operator": "In", **fields}]}
    }
    return {"template": template}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"weight": 0}, "spec.weight"),
        ({"replicas": 1, "weight": 1}, "spec"),
        ({"replicas": 1, "limits": {"cpu": 1}}, "spec"),
        ({"disruption": {"consolidationPolicy": "WhenUnderutilized"}}, "spec.disruption.consolidationPolicy"),
        ({"disruption": {"consolidateAfter": "soon"}}, "spec.disruption.consolidateAfter"),
        ({"disruption": {"budgets": [{"nodes": "101%"}]}}, "spec.disruption.budgets[0].nodes"),
        ({"disruption": {"budgets": [{"nodes": "1", "schedule": "@daily"}]}}, "spec.disruption.budgets"),
        ({"limits": {"cpu": "many"}}, "spec.limits[cpu]"),
        (requirement(values=[]), "spec.template.spec.requirements"),
        (requirement(operator="Gt", values=["-1"]), "spec.template.spec.requirements"),
        (requirement(values=["x"], minValues=2), "spec.template.spec.requirements"),
        (requirement(key="karpenter.sh/nodepool", values=["x"]), "spec.template.spec.requirements[0].key"),
        (requirement(key="karpenter.sh/other", values=["x"]), "spec.template.spec.requirements[0].key"),
    ],
)
def test_a_pool_that_karpenter_would_refuse_is_refused(spec: dict[str, Any], field: str) -> None:
    (kind,) = crds.resource_types(bundled_crds(["nodepools.karpenter.sh"])[0])
    assert kind.schema is not None
    obj = pool(**spec)

    kind.schema.default(obj)

    assert field in {error.field for error in kind.schema.validate(obj)}


def test_a_claim_cannot_be_changed() -> None:
    (kind,) = crds.resource_types(bundled_crds(["nodeclaims.karpenter.sh"])[0])
    assert kind.schema is not None
    claim = {"metadata": {"name": "c"}, "spec": pool()["spec"]["template"]["spec"]}
    changed = copy.deepcopy(claim)
    changed["spec"]["expireAfter"] = "1h"

    assert kind.schema.validate(claim, copy.deepcopy(claim)) == []
    assert [error.field for error in kind.schema.validate(changed, claim)] == ["spec"]
