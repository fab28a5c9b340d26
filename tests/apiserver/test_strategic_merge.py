import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool_fleet.apiserver.patches.json_patch import PatchError
from karpool_fleet.apiserver.patches.patch import merge_patch
from karpool_fleet.apiserver.patches.strategic_merge import strategic_merge
from karpool_fleet.apiserver.patches.values import same
from tests.apiserver.schemas import DEPLOYMENT, NODE, POD, WIDGET
from tests.apiserver.test_json_patch import documents


def pod(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}


def names(items: list[dict[str, Any]], key: str = "name") -> list[Any]:
    return [item[key] for item in items]


def test_containers_merge_by_name() -> None:
    live = pod(containers=[{"name": "app", "image": "app:1", "tty": True}, {"name": "log", "image": "log:1"}])

    patched = strategic_merge(live, {"spec": {"containers": [{"name": "log", "image": "log:2"}]}}, POD)

    assert patched["spec"]["containers"] == [
        {"name": "app", "image": "app:1", "tty": True},
        {"name": "log", "image": "log:2"},
    ]


def test_a_new_item_comes_first() -> None:
    live = pod(containers=[{"name": "app"}, {"name": "log"}])

    patched = strategic_merge(live, {"spec": {"containers": [{"name": "proxy"}]}}, POD)

    assert names(patched["spec"]["containers"]) == ["proxy", "app", "log"]


def test_set_element_order_decides_where_items_stand() -> None:
    live = pod(containers=[{"name": "app"}, {"name": "injected"}, {"name": "log"}])
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "log"}, {"name": "app"}, {"name": "new"}],
            "containers": [{"name": "new", "image": "new:1"}],
        }
    }

    patched = strategic_merge(live, patch, POD)

    assert names(patched["spec"]["containers"]) == ["injected", "log", "app", "new"]


def test_an_order_alone_reorders() -> None:
    live = pod(containers=[{"name": "a"}, {"name": "b"}])

    patched = strategic_merge(
        live, {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}, POD
    )

    assert names(patched["spec"]["containers"]) == ["b", "a"]


def test_env_merges_by_name_inside_a_container() -> None:
    live = pod(
        containers=[{"name": "app", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]
    )
    patch = {
        "spec": {
            "containers": [
                {"name": "app", "env": [{"name": "B", "value": "3"}, {"name": "A", "$patch": "delete"}]}
            ]
        }
    }

    patched = strategic_merge(live, patch, POD)

    assert patched["spec"]["containers"][0]["env"] == [{"name": "B", "value": "3"}]


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        pytest.param(
            {"containerPort": 80, "name": "http"}, [(80, "TCP", "http"), (53, "UDP", None)], id="by port"
        ),
        pytest.param(
            {"containerPort": 53, "protocol": "UDP", "name": "dns"},
            [(80, "TCP", None), (53, "UDP", "dns")],
            id="both",
        ),
        pytest.param(
            {"containerPort": 53, "protocol": "TCP"},
            [(53, "TCP", None), (80, "TCP", None), (53, "UDP", None)],
            id="same number, other protocol",
        ),
    ],
)
def test_ports_merge_by_number_and_by_protocol_when_named(port: dict[str, Any], expected: list[Any]) -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]
    live = pod(containers=[{"name": "app", "ports": ports}])

    patched = strategic_merge(live, {"spec": {"containers": [{"name": "app", "ports": [port]}]}}, POD)

    found = patched["spec"]["containers"][0]["ports"]
    assert [(item["containerPort"], item.get("protocol"), item.get("name")) for item in found] == expected


def test_lists_without_keys_are_replaced() -> None:
    live = pod(tolerations=[{"key": "a"}, {"key": "b"}], containers=[{"name": "app", "args": ["x", "y"]}])
    patch = {"spec": {"tolerations": [{"key": "c"}], "containers": [{"name": "app", "args": ["z"]}]}}

    patched = strategic_merge(live, patch, POD)

    assert patched["spec"]["tolerations"] == [{"key": "c"}]
    assert patched["spec"]["containers"][0]["args"] == ["z"]


def test_retain_keys_drops_the_other_volume_source() -> None:
    live = pod(volumes=[{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}])
    volume = {"name": "data", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/srv"}}

    patched = strategic_merge(live, {"spec": {"volumes": [volume]}}, POD)

    assert patched["spec"]["volumes"] == [
        {"name": "data", "hostPath": {"path": "/srv"}},
        {"name": "tmp", "emptyDir": {}},
    ]


def test_conditions_merge_by_type() -> None:
    live = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}, {"type": "Init"}]}}

    patched = strategic_merge(
        live, {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": None}]}}, POD
    )

    assert patched["status"]["conditions"] == [{"type": "Ready", "status": "True"}, {"type": "Init"}]


def test_the_keys_are_those_of_the_kind() -> None:
    live = {
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Old", "status": "False"}]}
    }
    changes = [{"type": "Old", "$patch": "delete"}, {"type": "Ready", "reason": "KubeletReady"}]

    assert strategic_merge(live, {"status": {"conditions": changes}}, NODE)["status"]["conditions"] == [
        {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    ]


def test_owner_references_merge_by_uid_and_finalizers_as_a_set_for_every_kind() -> None:
    live = {
        "metadata": {
            "ownerReferences": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}],
            "finalizers": ["x", "y"],
        }
    }
    patch = {
        "metadata": {
            "ownerReferences": [{"uid": "2", "$patch": "delete"}, {"uid": "1", "controller": True}],
            "$deleteFromPrimitiveList/finalizers": ["x"],
            "finalizers": ["z", "y"],
            "$setElementOrder/finalizers": ["y", "z"],
        }
    }

    for schema in (None, POD, WIDGET):
        assert strategic_merge(live, patch, schema)["metadata"] == {
            "ownerReferences": [{"uid": "1", "name": "a", "controller": True}],
            "finalizers": ["y", "z"],
        }


def test_sets_named_by_the_schema_are_united() -> None:
    live = {"spec": {"tags": ["a", "b"], "args": ["a", "b"]}}

    patched = strategic_merge(live, {"spec": {"tags": ["c", "a"], "args": ["c"]}}, WIDGET)

    assert patched["spec"] == {"tags": ["c", "a", "b"], "args": ["c"]}


def test_patch_replace_in_a_map_drops_what_it_does_not_name() -> None:
    live = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}, "replicas": 2}}

    patched = strategic_merge(
        live, {"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}}, DEPLOYMENT
    )

    assert patched["spec"] == {"strategy": {"type": "Recreate"}, "replicas": 2}


def test_patch_replace_in_a_list_keeps_only_the_patch_items() -> None:
    live = pod(containers=[{"name": "a", "tty": True}, {"name": "b"}])

    patched = strategic_merge(live, {"spec": {"containers": [{"$patch": "replace"}, {"name": "a"}]}}, POD)

    assert patched["spec"]["containers"] == [{"name": "a"}]


def test_patch_delete_empties_a_map_and_merge_is_the_default() -> None:
    live = {"spec": {"a": {"x": 1}, "b": {"x": 1}}}

    patched = strategic_merge(
        live, {"spec": {"a": {"$patch": "delete"}, "b": {"$patch": "merge", "y": 2}}}, None
    )

    assert patched["spec"] == {"a": {}, "b": {"x": 1, "y": 2}}


def test_directives_never_end_up_in_the_object() -> None:
    patch = {
        "spec": {
            "volumes": [{"name": "v", "$retainKeys": ["name"]}, {"name": "gone", "$patch": "delete"}],
            "$setElementOrder/volumes": [{"name": "v"}],
            "nested": {"$patch": "merge", "a": None, "b": 1},
        }
    }

    assert strategic_merge(pod(), patch, POD)["spec"] == {"volumes": [{"name": "v"}], "nested": {"b": 1}}


def test_a_keyed_list_that_is_not_there_is_taken_from_the_patch() -> None:
    patched = strategic_merge(pod(), {"spec": {"containers": [{"name": "app", "tty": None}]}}, POD)

    assert patched["spec"]["containers"] == [{"name": "app"}]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        pytest.param([], "must be an object", id="not an object"),
        pytest.param({"$patch": "explode"}, "must be replace, delete or merge", id="unknown directive"),
        pytest.param({"spec": {"containers": [{"image": "x"}]}}, "merge key 'name'", id="no merge key"),
        pytest.param({"spec": {"containers": [{"name": {"x": 1}}]}}, "must be a string", id="odd merge key"),
        pytest.param({"spec": {"containers": ["x"]}}, "must be an object", id="scalar in a keyed list"),
        pytest.param({"spec": {"$retainKeys": ["a"], "b": 1}}, "missing in \\$retainKeys", id="not retained"),
        pytest.param({"spec": {"$retainKeys": "a"}}, "must be a list", id="retainKeys is no list"),
        pytest.param({"spec": {"$setElementOrder/containers": "a"}}, "must be a list", id="order is no list"),
        pytest.param({"metadata": {"finalizers": [{}]}}, "must be a string", id="object in a set"),
    ],
)
def test_a_malformed_patch_is_a_bad_request_that_names_the_place(patch: object, message: str) -> None:
    live = pod(containers=[{"name": "app"}])
    live["metadata"]["finalizers"] = ["x"]

    with pytest.raises(PatchError, match=message) as caught:
        strategic_merge(live, patch, POD)
    assert caught.value.status_reason == "BadRequest"


def test_a_live_item_without_its_key_is_left_alone() -> None:
    live = pod(containers=[{"image": "odd"}, {"name": "app"}])

    patched = strategic_merge(live, {"spec": {"containers": [{"name": "app", "tty": True}]}}, POD)

    assert patched["spec"]["containers"] == [{"image": "odd"}, {"name": "app", "tty": True}]


container_names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=5)


@given(container_names, container_names)
@settings(max_examples=100)
def test_merging_items_twice_is_merging_them_once(live_names: list[str], patch_names: list[str]) -> None:
    live = pod(containers=[{"name": name, "image": "old"} for name in live_names])
    patch = {"spec": {"containers": [{"name": name, "image": "new"} for name in patch_names]}}
    before = copy.deepcopy(live)

    once = strategic_merge(live, patch, POD)

    found = {item["name"]: item["image"] for item in once["spec"]["containers"]}
    assert found == dict.fromkeys(live_names, "old") | dict.fromkeys(patch_names, "new")
    order = [name for name in names(once["spec"]["containers"]) if name in patch_names]
    assert order == patch_names
    assert same(strategic_merge(once, patch, POD), once)
    assert same(live, before)


@given(documents, documents)
@settings(max_examples=150)
def test_without_directives_and_keys_it_is_a_merge_patch(doc: dict[str, Any], patch: dict[str, Any]) -> None:
    before, asked = copy.deepcopy(doc), copy.deepcopy(patch)

    patched = strategic_merge(doc, without_nulls_in_lists(patch), None)

    assert same(patched, merge_patch(doc, without_nulls_in_lists(patch)))
    assert same(doc, before)
    assert same(patch, asked)


def without_nulls_in_lists(value: Any) -> Any:
    """Inside replaced lists the two differ: a strategic merge drops nulls of maps there."""
    if isinstance(value, dict):
        return {name: without_nulls_in_lists(member) for name, member in value.items()}
    return [] if isinstance(value, list) else value
