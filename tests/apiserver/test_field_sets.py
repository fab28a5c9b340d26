import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool_fleet.apiserver.patches import field_sets
from karpool_fleet.apiserver.patches.field_sets import (
    compare,
    field_set,
    intersect,
    same_set,
    subtract,
    union,
)
from karpool_fleet.apiserver.patches.managed_fields import decode, encode
from karpool_fleet.apiserver.schema.field_types import field_types
from tests.apiserver.schemas import POD, WIDGET
from tests.apiserver.test_json_patch import documents

elements = st.sampled_from(["f:a", "f:b", "f:c", 'k:{"name":"x"}', 'v:"y"'])
leaves: st.SearchStrategy[dict[str, Any]] = st.just({})


def nodes(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    below = st.dictionaries(elements, inner, min_size=1, max_size=3)
    return below | below.map(lambda fields: {".": {}, **fields})


sets = st.dictionaries(elements, st.recursive(leaves, nodes, max_leaves=8), max_size=3)


def members(fields: dict[str, Any], prefix: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The set as paths: what the tree operations are compared with."""
    found: set[tuple[str, ...]] = set()
    for key, node in fields.items():
        if key != ".":
            here = (*prefix, key)
            found |= members(node, here) | ({here} if not node or "." in node else set())
    return found


@pytest.mark.long
@given(sets, sets)
@settings(max_examples=200)
def test_tree_operations_are_set_operations(left: dict[str, Any], right: dict[str, Any]) -> None:
    before = copy.deepcopy((left, right))

    assert members(union(left, right)) == members(left) | members(right)
    assert members(intersect(left, right)) == members(left) & members(right)
    assert members(subtract(left, right)) == members(left) - members(right)
    assert same_set(left, right) == (members(left) == members(right))
    assert (left, right) == before


@given(sets, sets)
@settings(max_examples=200)
def test_subtracting_trees_takes_all_below(left: dict[str, Any], right: dict[str, Any]) -> None:
    gone = members(right)
    expected = {path for path in members(left) if not any(path[:n] in gone for n in range(1, len(path) + 1))}

    assert members(field_sets.subtract_trees(left, right)) == expected


def test_one_set_in_full() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "1",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "web"},
            "finalizers": ["example.com/a"],
            "ownerReferences": [{"uid": "u", "name": "rs"}],
        },
        "spec": {
            "containers": [{"name": 'a"b', "ports": [{"containerPort": 80}], "args": ["x"], "resources": {}}],
            "tolerations": [{"key": "gpu"}],
        },
    }

    assert field_set(pod, field_types(POD)) == {
        "f:metadata": {
            "f:labels": {"f:app": {}},
            "f:finalizers": {'v:"example.com/a"': {}},
            "f:ownerReferences": {'k:{"uid":"u"}': {}},
        },
        "f:spec": {
            "f:containers": {
                'k:{"name":"a\\"b"}': {
                    ".": {},
                    "f:name": {},
                    "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                    "f:args": {},
                    "f:resources": {},
                }
            },
            "f:tolerations": {},
        },
    }


def test_the_schema_decides_what_is_one_field() -> None:
    widget = {
        "spec": {
            "tags": ["b", "a"],
            "selector": {"app": "x"},
            "limits": {"cpu": "1"},
            "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}],
            "pools": {"any": {"zones": ["a"]}},
            "unknown": {"deep": [{"x": 1}]},
        }
    }

    assert field_set(widget, field_types(WIDGET)) == {
        "f:spec": {
            "f:tags": {'v:"b"': {}, 'v:"a"': {}},
            "f:selector": {},
            "f:limits": {"f:cpu": {}},
            "f:ports": {
                'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}},
                'k:{"port":53,"protocol":"UDP"}': {".": {}, "f:port": {}, "f:protocol": {}},
            },
            "f:pools": {"f:any": {"f:zones": {'v:"a"': {}}}},
            "f:unknown": {"f:deep": {}},
        }
    }


@pytest.mark.long
@given(documents, documents)
@settings(max_examples=200)
def test_a_comparison_accounts_for_every_field(old: dict[str, Any], new: dict[str, Any]) -> None:
    """What is in the new object was there before, is changed, or is a map that was emptied."""
    root = field_types(None)
    difference = compare(old, new, root)
    kept = field_sets.subtract_trees(field_set(old, root), difference.removed)
    emptied = {path[:-1] for path in members(difference.removed)}

    assert members(field_set(new, root)) - emptied <= members(union(kept, difference.changed))
    assert members(difference.changed) <= members(field_set(new, root))
    assert compare(new, copy.deepcopy(new), root).changed == {}
    if old == new:
        assert difference.removed == {}


@pytest.mark.parametrize(
    ("old", "new", "is_change"),
    [
        pytest.param(1, True, True, id="a number and a boolean"),
        pytest.param([1], [True], True, id="inside a list"),
        pytest.param(1, 1.0, False, id="two spellings of a number"),
        pytest.param({"x": [{"y": 1}]}, {"x": [{"y": 1}]}, False, id="equal"),
        pytest.param({"x": 1}, {}, False, id="emptied"),
        pytest.param({"x": 1}, [1], True, id="another type"),
    ],
)
def test_what_counts_as_a_change(old: Any, new: Any, is_change: bool) -> None:
    difference = compare({"spec": {"a": old}}, {"spec": {"a": new}}, field_types(None))

    assert (difference.changed != {}) is is_change


def test_the_order_of_keyed_items_and_of_sets_is_no_change() -> None:
    old = {"spec": {"tags": ["a", "b"], "ports": [{"port": 1}, {"port": 2}]}}
    new = {"spec": {"tags": ["b", "a"], "ports": [{"port": 2}, {"port": 1}]}}

    difference = compare(old, new, field_types(WIDGET))

    assert (difference.changed, difference.removed) == ({}, {})


def test_paths_are_written_as_people_write_them() -> None:
    fields = {
        "f:spec": {
            "f:containers": {'k:{"name":"app"}': {".": {}, "f:image": {}}},
            "f:tags": {'v:"x"': {}},
            "f:odd": {"k:not json": {}, "i:3": {}},
        }
    }

    assert list(field_sets.paths(fields)) == [
        '.spec.containers[name="app"]',
        '.spec.containers[name="app"].image',
        '.spec.tags[="x"]',
        ".spec.odd[not json]",
        ".spec.odd[3]",
    ]


entries = st.fixed_dictionaries(
    {
        "manager": st.sampled_from(["kubectl", "karpool", "kubelet"]),
        "operation": st.sampled_from(["Apply", "Update"]),
        "apiVersion": st.sampled_from(["v1", "apps/v1"]),
        "time": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
        "fieldsType": st.just("FieldsV1"),
        "fieldsV1": sets.filter(bool),
    },
    optional={"subresource": st.sampled_from(["status", "scale"])},
)


@given(st.lists(entries, max_size=5))
@settings(max_examples=100)
def test_managed_fields_survive_decoding_and_encoding(managed: list[dict[str, Any]]) -> None:
    managed.sort(key=lambda entry: (entry["operation"], entry["time"], entry["manager"]))
    decoded = decode(managed)

    assert decoded is not None
    assert encode(decoded) == managed
    assert decode(encode(decoded)) == decoded


@pytest.mark.parametrize(
    "managed",
    [
        pytest.param("text", id="not a list"),
        pytest.param(["text"], id="not an entry"),
        pytest.param([{"operation": "Delete", "fieldsV1": {}}], id="unknown operation"),
        pytest.param([{"operation": "Apply", "manager": 7}], id="manager is a number"),
        pytest.param([{"operation": "Apply", "fieldsType": "FieldsV2", "fieldsV1": {}}], id="unknown format"),
        pytest.param([{"operation": "Apply", "fieldsV1": {"spec": {}}}], id="unknown element"),
        pytest.param([{"operation": "Apply", "fieldsV1": {"f:a": 1}}], id="not a tree"),
        pytest.param(
            [{"operation": "Apply", "fieldsV1": {"f:a": {".": {"f:b": {}}}}}], id="fields below a dot"
        ),
    ],
)
def test_what_is_not_managed_fields_is_not_read_as_such(managed: object) -> None:
    assert decode(managed) is None
