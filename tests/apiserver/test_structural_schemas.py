"""Prune, default and validate, and that the quick check agrees with the explaining one."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool_fleet.apiserver.kinds import crds
from karpool_fleet.apiserver.schema.check import compile_check
from karpool_fleet.apiserver.schema.compiled import StructuralSchema, compile_schema
from karpool_fleet.apiserver.schema.field_types import field_types
from karpool_fleet.apiserver.schema.pruning import compile_clean, prune_in_place
from karpool_fleet.apiserver.schema.structure import BadSchema, read_schema
from karpool_fleet.apiserver.schema.violations import ERRORS_MAX, violations

WIDGETS = yaml.safe_load((Path(__file__).parent / "crds" / "widgets.yaml").read_text())
OPENAPI = WIDGETS["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def widget(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"size": 1, **spec},
    }


@pytest.fixture(scope="module")
def schema() -> StructuralSchema:
    return StructuralSchema(crds.resource_node(OPENAPI))


def reasons(
    schema: StructuralSchema, obj: dict[str, Any], old: dict[str, Any] | None = None
) -> list[tuple[str, str]]:
    schema.default(obj)
    return [(error.field, error.reason) for error in schema.validate(obj, old)]


def test_unknown_fields_are_dropped_with_their_paths(schema: StructuralSchema) -> None:
    obj = widget(sise=1, ports=[{"port": 1, "prot": "x"}], extra={"any": 1, "known": {"x": 1, "y": 2}})
    obj["metadata"]["lables"] = {}
    obj["specs"] = {}

    dropped = schema.prune(obj)

    assert dropped == [
        "metadata.lables",
        "spec.sise",
        "spec.ports[0].prot",
        "spec.extra.known.y",
        "specs",
    ]
    assert obj["spec"] == {"size": 1, "ports": [{"port": 1}], "extra": {"any": 1, "known": {"x": 1}}}
    assert schema.prune(obj) == []


def test_embedded_resources_keep_their_identity(schema: StructuralSchema) -> None:
    inner = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"a": 1}}
    obj = widget(object=inner)

    assert schema.prune(obj) == []
    assert reasons(schema, obj) == []
    assert reasons(schema, widget(object={"kind": "Pod"})) == [
        ("spec.object.apiVersion", "FieldValueRequired")
    ]


def test_defaults_are_filled_at_every_depth(schema: StructuralSchema) -> None:
    obj = widget(ports=[{"port": 1}, {"port": 2, "protocol": "UDP"}])

    schema.default(obj)

    assert obj["spec"]["limit"] == 10
    assert obj["spec"]["mode"] == "slow"
    assert [port["protocol"] for port in obj["spec"]["ports"]] == ["TCP", "UDP"]


def test_defaults_are_not_shared_between_objects() -> None:
    schema = compile_schema({"type": "object", "properties": {"a": {"type": "array", "default": []}}})
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}

    schema.default(first)
    first["a"].append(1)
    schema.default(second)

    assert second == {"a": []}


def test_null_is_dropped_unless_allowed(schema: StructuralSchema) -> None:
    obj = widget(mode=None, owner=None, note=None)

    schema.default(obj)

    assert obj["spec"]["mode"] == "slow"
    assert "owner" not in obj["spec"]
    assert obj["spec"]["note"] is None
    assert schema.validate(obj) == []


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"size": "1"}, "spec.size", "FieldValueTypeInvalid"),
        ({"size": True}, "spec.size", "FieldValueTypeInvalid"),
        ({"size": 1.5}, "spec.size", "FieldValueTypeInvalid"),
        ({"size": -1}, "spec.size", "FieldValueInvalid"),
        ({"size": 2**31}, "spec.size", "FieldValueInvalid"),
        ({"owner": "x" * 21}, "spec.owner", "FieldValueTooLong"),
        ({"owner": "X"}, "spec.owner", "FieldValueInvalid"),
        ({"mode": "medium"}, "spec.mode", "FieldValueNotSupported"),
        ({"amount": 1.5}, "spec.amount", "FieldValueTypeInvalid"),
        ({"amount": "1x"}, "spec.amount", "FieldValueInvalid"),
        ({"colours": ["a", "a"]}, "spec.colours[1]", "FieldValueDuplicate"),
        ({"colours": list("abcd")}, "spec.colours", "FieldValueTooMany"),
        ({"colours": [1]}, "spec.colours[0]", "FieldValueTypeInvalid"),
        ({"colours": "a"}, "spec.colours", "FieldValueTypeInvalid"),
        ({"ports": [{"port": 1}, {"port": 1}]}, "spec.ports[1]", "FieldValueDuplicate"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port", "FieldValueInvalid"),
        ({"ports": [{}]}, "spec.ports[0].port", "FieldValueRequired"),
        ({"ports": [None]}, "spec.ports[0]", "FieldValueTypeInvalid"),
        ({"labels": {"a": ""}}, "spec.labels[a]", "FieldValueInvalid"),
        ({"labels": {"a": "1", "b": "2", "c": "3"}}, "spec.labels", "FieldValueTooMany"),
        ({"choice": {}}, "spec.choice", "FieldValueInvalid"),
        ({"choice": {"a": "1", "b": "2"}}, "spec.choice", "FieldValueInvalid"),
        ({"since": "yesterday"}, "spec.since", "FieldValueInvalid"),
        ({"since": "2026-02-30T00:00:00Z"}, "spec.since", "FieldValueInvalid"),
        ({"size": 11}, "spec", "FieldValueInvalid"),
    ],
)
def test_each_problem_names_its_field(
    schema: StructuralSchema, spec: dict[str, Any], field: str, reason: str
) -> None:
    assert (field, reason) in reasons(schema, widget(**spec))


def test_valid_values_pass(schema: StructuralSchema) -> None:
    obj = widget(
        size=2.0,
        amount=5,
        colours=["a", "b"],
        ports=[{"port": 1}, {"port": 1, "protocol": "UDP"}],
        labels={"a": "b"},
        choice={"a": "x"},
        since="2026-01-01T00:00:00.123+02:00",
    )

    assert reasons(schema, obj) == []


def test_a_missing_spec_is_required(schema: StructuralSchema) -> None:
    obj = widget()
    del obj["spec"]

    assert reasons(schema, obj) == [("spec", "FieldValueRequired")]


def test_transition_rules_compare_with_the_stored_object(schema: StructuralSchema) -> None:
    old, same, other = widget(owner="a"), widget(owner="a", size=2), widget(owner="b")
    for obj in (old, same, other):
        schema.default(obj)

    assert schema.validate(other) == []
    assert schema.validate(same, old) == []
    (error,) = schema.validate(other, old)
    assert (error.field, error.reason, error.detail) == (
        "spec.owner",
        "FieldValueForbidden",
        "owner is fixed",
    )


def test_items_of_keyed_lists_are_compared_with_their_predecessors() -> None:
    items = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.value == oldSelf.value", "message": "fixed"}],
    }
    keyed = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": items,
    }
    schema = compile_schema({"type": "object", "properties": {"list": keyed}})
    old = {"list": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]}

    moved = schema.validate({"list": [{"name": "b", "value": "2"}, {"name": "c", "value": "9"}]}, old)
    changed = schema.validate({"list": [{"name": "b", "value": "3"}]}, old)

    assert moved == []
    assert [error.field for error in changed] == ["list[0]"]


def test_merge_keys_are_found_by_path(schema: StructuralSchema) -> None:
    root = field_types(schema)

    assert root.child("spec").child("ports").keys == ("port", "protocol")
    assert root.child("status").child("conditions").keys == ("type",)
    assert root.child("spec").child("colours").keys is None
    assert root.child("spec").child("nowhere").child("deep").keys is None


def test_errors_are_bounded() -> None:
    schema = compile_schema({"type": "object", "additionalProperties": {"type": "string"}})

    assert len(schema.validate({str(index): index for index in range(1000)})) == ERRORS_MAX


def test_schemas_that_nest_too_deep_are_refused() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}

    with pytest.raises(BadSchema, match="nested deeper"):
        read_schema(deep)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 70_000) | st.sampled_from([65_535, 65_536, 2**31 - 1, 2**31]),
        st.floats(-5, 5),
        st.sampled_from(["", "a", "slow", "UDP", "1k", "2026-01-01T00:00:00Z", "X"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["size", "port", "protocol", "type", "status", "a", "b", "known", "x", "kind", "apiVersion"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)
SPECS = st.fixed_dictionaries(
    {"size": st.one_of(st.integers(-1, 12), VALUES)},
    optional={
        name: VALUES for name in (*OPENAPI["properties"]["spec"]["properties"], "unknown") if name != "size"
    },
)


@pytest.mark.long
@settings(max_examples=300)
@given(SPECS)
def test_the_quick_check_agrees_with_the_explaining_one(spec: dict[str, Any]) -> None:
    root = crds.resource_node(OPENAPI)
    check, clean = compile_check(root), compile_clean(root)
    assert check is not None
    assert clean is not None
    obj = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {}, "spec": spec}

    pruned = copy.deepcopy(obj)
    dropped = prune_in_place(root, pruned)

    assert check(obj) == (violations(root, obj) == [])
    assert clean(obj) == (dropped == [])
    assert clean(pruned)


@given(SPECS)
def test_completing_an_object_twice_changes_nothing(spec: dict[str, Any]) -> None:
    schema = StructuralSchema(crds.resource_node(OPENAPI))
    obj = {"spec": spec}

    schema.prune(obj)
    schema.default(obj)
    once = copy.deepcopy(obj)
    schema.prune(obj)
    schema.default(obj)

    assert obj == once
