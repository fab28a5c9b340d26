"""CustomResourceDefinitions and their objects."""

import json
from pathlib import Path

import pytest
import yaml

from karpool_fleet.apiserver.kinds.bundled_crds import bundled_crds
from tests.kubectl.conftest import Kubectl

pytestmark = pytest.mark.kubectl

CRDS = Path(__file__).parent.parent / "apiserver" / "crds"


def pool(name: str, **spec: object) -> dict[str, object]:
    node_class = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    template = {"spec": {"nodeClassRef": node_class, "requirements": []}}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


@pytest.fixture(scope="module")
def definitions(any_namespace: Kubectl) -> None:
    any_namespace.apply(*bundled_crds(["nodepools.karpenter.sh", "nodeclaims.karpenter.sh"]))
    any_namespace("wait", "crd/nodepools.karpenter.sh", "--for=condition=Established", "--timeout=10s")


@pytest.fixture
def karpenter(kubectl: Kubectl, definitions: None) -> Kubectl:
    """With Karpenter's definitions installed."""
    return kubectl


def test_the_bundled_definitions_can_be_installed_and_listed(kubectl: Kubectl) -> None:
    kubectl.apply(*bundled_crds())

    names = kubectl("get", "crd", "-o", "name").split()
    resources = kubectl("api-resources", "--api-group=karpenter.sh", "-o", "name").split()

    assert "customresourcedefinition.apiextensions.k8s.io/nodepools.karpenter.sh" in names
    assert sorted(resources) == [
        f"{name}.karpenter.sh" for name in ("nodeclaims", "nodeoverlays", "nodepools")
    ]
    assert kubectl("get", "pp,rb,clusters.cluster.karmada.io") == ""


def test_defaults_columns_and_scale(karpenter: Kubectl) -> None:
    name = f"pool-{karpenter.namespace}"
    karpenter.apply(pool(name, replicas=1))

    created = karpenter.json("nodepool", name)
    header, row = karpenter.rows("get", "nodepools", name)
    karpenter("scale", "nodepool", name, "--replicas=3")

    assert created["spec"]["disruption"]["consolidationPolicy"] == "WhenEmptyOrUnderutilized"
    assert created["spec"]["disruption"]["budgets"] == [{"nodes": "10%"}]
    assert header == ["NAME", "NODECLASS", "NODES", "READY", "AGE"]
    assert row[:2] == [name, "default"]
    assert karpenter.json("nodepool", name)["spec"]["replicas"] == 3


def test_a_category_lists_its_kinds(karpenter: Kubectl) -> None:
    name = f"pool-{karpenter.namespace}"
    karpenter.apply(pool(name))

    assert f"nodepool.karpenter.sh/{name}" in karpenter("get", "karpenter", "-o", "name").split()


def test_invalid_objects_are_refused_by_field(karpenter: Kubectl) -> None:
    bad = pool("bad", weight=1000, disruption={"consolidationPolicy": "Sometimes"})

    complaint = karpenter.fails("create", "-f", "-", stdin=yaml.safe_dump(bad))

    assert "spec.weight" in complaint
    assert "spec.disruption.consolidationPolicy" in complaint
    assert "WhenEmpty" in complaint


def test_rules_about_changes_are_kept(karpenter: Kubectl) -> None:
    name = f"pool-{karpenter.namespace}"
    karpenter.apply(pool(name))
    change = {"spec": {"template": {"spec": {"nodeClassRef": {"kind": "Other"}}}}}

    complaint = karpenter.fails("patch", "nodepool", name, "--type=merge", "-p", json.dumps(change))

    assert "nodeClassRef.kind cannot be changed" in complaint


def test_unknown_fields_are_reported(karpenter: Kubectl) -> None:
    typo = pool(f"pool-{karpenter.namespace}")
    typo["spec"]["wieght"] = 3  # type: ignore[index]

    complaint = karpenter.fails("create", "-f", "-", stdin=yaml.safe_dump(typo))

    assert "wieght" in complaint


def test_explain_reads_the_schema_of_a_definition(karpenter: Kubectl) -> None:
    field = karpenter("explain", "nodepool.spec.disruption.consolidateAfter")
    recursive = karpenter("explain", "nodepools.spec", "--recursive")

    assert "How long a node must be left alone" in " ".join(field.split())
    assert "consolidationPolicy" in recursive


def test_describe_shows_a_custom_object(karpenter: Kubectl) -> None:
    name = f"pool-{karpenter.namespace}"
    karpenter.apply(pool(name, limits={"cpu": "100"}))

    text = karpenter("describe", "nodepool", name)

    assert "Consolidation Policy:" in text
    assert "Cpu:" in text


def test_apply_diff_and_patch_work_on_custom_objects(karpenter: Kubectl) -> None:
    name = f"pool-{karpenter.namespace}"
    karpenter.apply(pool(name, weight=1))

    unchanged = karpenter.apply(pool(name, weight=1))
    difference = karpenter.run("diff", "-f", "-", stdin=yaml.safe_dump(pool(name, weight=2)))
    karpenter("patch", "nodepool", name, "--type=json", "-p", '[{"op":"remove","path":"/spec/weight"}]')
    strategic = karpenter.fails("patch", "nodepool", name, "--type=strategic", "-p", '{"spec":{"weight":1}}')

    assert unchanged.strip() == f"nodepool.karpenter.sh/{name} unchanged"
    assert "+  weight: 2" in difference.stdout
    assert "weight" not in karpenter.json("nodepool", name)["spec"]
    assert "415" in strategic or "not supported" in strategic or "unsupported" in strategic.lower()


def test_server_side_apply_follows_list_types(karpenter: Kubectl) -> None:
    name = f"pool-{karpenter.namespace}"
    karpenter.apply(pool(name, weight=1), flags=("--server-side", "--field-manager=a"))

    text = yaml.safe_dump(pool(name, weight=2))
    complaint = karpenter.fails("apply", "--server-side", "--field-manager=b", "-f", "-", stdin=text)

    assert ".spec.weight" in complaint


def test_a_definition_goes_with_its_objects(kubectl: Kubectl) -> None:
    definition = yaml.safe_load((CRDS / "widgets.yaml").read_text())
    group = f"{kubectl.namespace}.example.com"
    definition["spec"]["group"] = group
    definition["metadata"]["name"] = f"widgets.{group}"
    kubectl.apply(definition)
    widget = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}}
    kubectl.apply(widget)

    kubectl("delete", "crd", f"widgets.{group}", "--timeout=20s")

    assert "doesn't have a resource type" in kubectl.fails("get", f"widgets.{group}")


def test_a_definition_that_is_not_structural_is_refused(kubectl: Kubectl) -> None:
    definition = yaml.safe_load((CRDS / "widgets.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["type"]
    definition["metadata"]["name"] = "gadgets.example.com"

    complaint = kubectl.fails("create", "-f", "-", stdin=yaml.safe_dump(definition))

    assert "openAPIV3Schema.properties[spec].type" in complaint
    assert "metadata.name" in complaint
