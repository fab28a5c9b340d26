import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool_fleet.apiserver.objects.types import Object, Schema
from karpool_fleet.apiserver.patches.apply import ApplyConflict, apply
from karpool_fleet.apiserver.patches.json_patch import PatchError
from karpool_fleet.apiserver.patches.managed_fields import track_update
from karpool_fleet.apiserver.patches.values import same
from tests.apiserver.schemas import POD, WIDGET

MONDAY, TUESDAY, WEDNESDAY = (f"2026-06-0{day}T08:00:00Z" for day in (1, 2, 3))


def widget(spec: dict[str, Any], **metadata: Any) -> Object:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w", **metadata},
        "spec": spec,
    }


def applied(
    live: Object | None,
    spec: dict[str, Any],
    by: str = "alice",
    *,
    force: bool = False,
    now: str = MONDAY,
    schema: Schema | None = WIDGET,
    **metadata: Any,
) -> Object:
    return apply(
        live,
        widget(spec, **metadata),
        manager=by,
        force=force,
        schema=schema,
        api_version="example.com/v1",
        now=now,
    )


def updated(
    old: Object | None, new: Object, by: str = "bob", *, now: str = TUESDAY, subresource: str = ""
) -> Object:
    new = copy.deepcopy(new)
    track_update(
        old, new, manager=by, api_version="example.com/v1", now=now, schema=WIDGET, subresource=subresource
    )
    return new


def owners(obj: Object) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (entry["manager"], entry["operation"]): entry["fieldsV1"]
        for entry in obj["metadata"].get("managedFields", ())
    }


def test_applying_to_nothing_creates_the_object_and_owns_it() -> None:
    created = applied(None, {"replicas": 2, "limits": None})

    assert created["spec"] == {"replicas": 2}
    assert created["metadata"]["managedFields"] == [
        {
            "manager": "alice",
            "operation": "Apply",
            "apiVersion": "example.com/v1",
            "time": MONDAY,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
    ]


def test_applying_the_same_again_changes_nothing_not_even_a_time() -> None:
    live = applied(None, {"replicas": 2, "tags": ["a"], "ports": [{"port": 80}]})

    assert applied(live, {"replicas": 2, "tags": ["a"], "ports": [{"port": 80}]}, now=TUESDAY) is live


def test_what_is_no_longer_applied_is_removed() -> None:
    live = applied(None, {"replicas": 2, "limits": {"cpu": "1", "memory": "1Gi"}, "tags": ["a", "b"]})

    live = applied(live, {"limits": {"cpu": "1"}, "tags": ["b"]}, now=TUESDAY)

    assert live["spec"] == {"limits": {"cpu": "1"}, "tags": ["b"]}
    assert live["metadata"]["managedFields"][0]["time"] == TUESDAY


def test_a_map_left_empty_goes_with_its_last_member() -> None:
    live = applied(None, {"replicas": 2, "limits": {"cpu": "1"}}, labels={"a": "b"})

    live = applied(live, {"replicas": 2})

    assert live["spec"] == {"replicas": 2}
    assert "labels" not in live["metadata"]


def test_a_value_another_manager_set_is_a_conflict_that_names_field_and_manager() -> None:
    live = applied(None, {"replicas": 2})
    live = updated(live, live | {"spec": {"replicas": 5}}, by="kubectl-scale")

    with pytest.raises(ApplyConflict) as caught:
        applied(live, {"replicas": 2})

    assert str(caught.value) == (
        'Apply failed with 1 conflict: conflict with "kubectl-scale" using example.com/v1: .spec.replicas'
    )
    assert caught.value.causes() == [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl-scale" using example.com/v1',
            "field": ".spec.replicas",
        }
    ]


def test_there_is_one_cause_per_field_and_manager() -> None:
    live = applied(None, {"replicas": 2, "limits": {"cpu": "1"}}, by="alice")
    live = applied(live, {"replicas": 2}, by="bob")

    with pytest.raises(ApplyConflict) as caught:
        applied(live, {"replicas": 3, "limits": {"cpu": "2"}}, by="carol")

    assert sorted((conflict.entry.manager, conflict.field) for conflict in caught.value.conflicts) == [
        ("alice", ".spec.limits.cpu"),
        ("alice", ".spec.replicas"),
        ("bob", ".spec.replicas"),
    ]


def test_force_takes_the_field_away() -> None:
    live = applied(None, {"replicas": 2, "args": ["x"]}, by="alice")

    live = applied(live, {"replicas": 3}, by="bob", force=True)

    assert live["spec"] == {"replicas": 3, "args": ["x"]}
    assert owners(live) == {
        ("alice", "Apply"): {"f:spec": {"f:args": {}}},
        ("bob", "Apply"): {"f:spec": {"f:replicas": {}}},
    }


def test_agreeing_on_a_value_shares_it_and_it_stays_until_the_last_lets_go() -> None:
    live = applied(None, {"replicas": 2}, by="alice")
    live = applied(live, {"replicas": 2}, by="bob")

    live = applied(live, {}, by="alice")
    assert live["spec"] == {"replicas": 2}
    live = applied(live, {}, by="bob")
    assert live.get("spec", {}) == {}


def test_keyed_items_belong_to_who_applied_them() -> None:
    live = applied(None, {"ports": [{"port": 80, "name": "http"}]}, by="alice")
    live = applied(live, {"ports": [{"port": 53, "protocol": "UDP"}]}, by="bob")
    assert live["spec"]["ports"] == [{"port": 80, "name": "http"}, {"port": 53, "protocol": "UDP"}]

    live = applied(live, {"ports": []}, by="alice")
    assert live["spec"]["ports"] == [{"port": 53, "protocol": "UDP"}]


def test_an_item_goes_with_the_defaults_in_it_but_not_with_the_fields_of_others() -> None:
    live = applied(None, {"ports": [{"port": 80}, {"port": 81}]}, by="alice")
    for port in live["spec"]["ports"]:
        port["protocol"] = "TCP"
    live = applied(live, {"ports": [{"port": 81, "name": "admin"}]}, by="bob")

    live = applied(live, {}, by="alice")

    assert live["spec"]["ports"] == [{"port": 81, "protocol": "TCP", "name": "admin"}]


def test_a_missing_key_with_a_default_is_that_default() -> None:
    live = updated(None, widget({"ports": [{"port": 80, "protocol": "TCP", "name": "a"}]}))

    live = applied(live, {"ports": [{"port": 80, "name": "b"}]}, force=True)

    assert live["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "name": "b"}]


def test_atomic_maps_and_lists_change_as_a_whole() -> None:
    live = applied(None, {"selector": {"a": "1"}, "args": ["x"]}, by="alice")

    with pytest.raises(ApplyConflict) as caught:
        applied(live, {"selector": {"b": "2"}, "args": ["x", "y"]}, by="bob")
    assert {conflict.field for conflict in caught.value.conflicts} == {".spec.selector", ".spec.args"}

    live = applied(live, {"selector": {"b": "2"}, "args": ["y"]}, by="bob", force=True)
    assert live["spec"] == {"selector": {"b": "2"}, "args": ["y"]}


def test_live_items_keep_their_place_among_applied_ones() -> None:
    live = updated(None, widget({"tags": ["one", "two", "three"]}))

    live = applied(live, {"tags": ["new", "two"]})

    assert live["spec"]["tags"] == ["one", "new", "two", "three"]
    assert applied(live, {"tags": ["new", "two"]}, now=WEDNESDAY) is live


def test_a_reordered_apply_reorders() -> None:
    live = applied(None, {"tags": ["a", "b", "c"]})

    assert applied(live, {"tags": ["c", "a", "b"]})["spec"]["tags"] == ["c", "a", "b"]


def test_finalizers_and_owner_references_merge_without_a_schema() -> None:
    live = applied(
        None, {}, by="a", schema=None, finalizers=["x"], ownerReferences=[{"uid": "1", "name": "p"}]
    )

    live = applied(
        live, {}, by="b", schema=None, finalizers=["y"], ownerReferences=[{"uid": "2", "name": "q"}]
    )

    assert live["metadata"]["finalizers"] == ["x", "y"]
    assert [reference["uid"] for reference in live["metadata"]["ownerReferences"]] == ["1", "2"]


@pytest.mark.parametrize(
    ("spec", "metadata", "message"),
    [
        pytest.param({"ports": [{"port": 1}, {"port": 1}]}, {}, "occurs more than once", id="duplicate key"),
        pytest.param({"tags": ["a", "a"]}, {}, "occurs more than once", id="duplicate in a set"),
        pytest.param({}, {"managedFields": [{"manager": "x"}]}, "remove the field", id="managedFields"),
    ],
)
def test_an_object_that_cannot_be_applied_is_refused(
    spec: dict[str, Any], metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(PatchError, match=message):
        applied(None, spec, **metadata)


def test_subresources_are_managed_apart() -> None:
    live = applied(None, {"replicas": 2})
    status = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "status": {"ready": 1},
    }

    live = apply(live, status, manager="alice", force=False, schema=WIDGET, api_version="example.com/v1",
                 now=TUESDAY, subresource="status")  # fmt: skip

    assert live["spec"] == {"replicas": 2}
    assert [(entry.get("subresource"), entry["fieldsV1"]) for entry in live["metadata"]["managedFields"]] == [
        (None, {"f:spec": {"f:replicas": {}}}),
        ("status", {"f:status": {"f:ready": {}}}),
    ]


def test_an_update_moves_what_it_changed_and_only_that() -> None:
    live = applied(None, {"replicas": 2, "limits": {"cpu": "1"}})

    live = updated(live, live | {"spec": {"replicas": 5, "limits": {"cpu": "1"}}})

    assert owners(live) == {
        ("alice", "Apply"): {"f:spec": {"f:limits": {"f:cpu": {}}}},
        ("bob", "Update"): {"f:spec": {"f:replicas": {}}},
    }


def test_an_update_that_removes_a_field_leaves_it_to_nobody() -> None:
    live = applied(None, {"replicas": 2, "ports": [{"port": 1}, {"port": 2}]})

    live = updated(live, live | {"spec": {"ports": [{"port": 2}]}})

    assert owners(live) == {
        ("alice", "Apply"): {
            "f:spec": {"f:ports": {'k:{"port":2,"protocol":"TCP"}': {".": {}, "f:port": {}}}}
        }
    }


def test_an_update_that_changes_nothing_keeps_every_entry() -> None:
    live = updated(applied(None, {"replicas": 2}), widget({"replicas": 3}), now=TUESDAY)

    again = updated(live, live, by="bob", now=WEDNESDAY)

    assert again == live


def test_a_client_that_drops_managed_fields_does_not_lose_them() -> None:
    live = applied(None, {"replicas": 2})
    for sent in ([], None):
        body = widget({"replicas": 2}, managedFields=sent)
        assert owners(updated(live, body)) == owners(live)


def test_one_empty_entry_resets_managed_fields() -> None:
    live = applied(None, {"replicas": 2})

    reset = updated(live, widget({"replicas": 2}, managedFields=[{}]))

    assert "managedFields" not in reset["metadata"]


def test_unreadable_managed_fields_are_replaced_by_the_stored_ones() -> None:
    live = applied(None, {"replicas": 2})

    sent = updated(live, widget({"replicas": 2}, managedFields=[{"manager": "x", "fieldsV1": {"bad": 1}}]))

    assert owners(sent) == owners(live)


def test_a_status_write_cannot_rewrite_the_entries() -> None:
    live = applied(None, {"replicas": 2})
    new = copy.deepcopy(live) | {"status": {"ready": 1}}
    new["metadata"]["managedFields"] = [{}]

    new = updated(live, new, by="controller", subresource="status")

    assert set(owners(new)) == {("alice", "Apply"), ("controller", "Update")}


def test_kubectl_may_turn_its_client_side_entry_into_an_applied_one() -> None:
    live = updated(None, widget({"replicas": 2, "args": ["x"]}), by="kubectl-client-side-apply", now=MONDAY)
    migrated = copy.deepcopy(live)
    migrated["metadata"]["managedFields"][0] |= {"manager": "kubectl", "operation": "Apply"}

    live = updated(live, migrated, by="kubectl")
    live = applied(live, {"replicas": 3}, by="kubectl", now=WEDNESDAY)

    assert live["spec"] == {"replicas": 3}
    assert set(owners(live)) == {("kubectl", "Apply")}


def test_old_plain_writers_are_folded_into_one_entry() -> None:
    live = updated(None, widget({"limits": {"m0": "1"}}), by="m0", now=MONDAY)
    for number in range(1, 30):
        new = copy.deepcopy(live)
        new["spec"]["limits"][f"m{number}"] = "1"
        live = updated(live, new, by=f"m{number}", now=f"2026-06-02T08:00:{number:02}Z")

    entries = live["metadata"]["managedFields"]
    assert len(entries) == 10
    assert entries[0]["manager"] == "ancient-changes"
    owned = [name for entry in entries for name in entry["fieldsV1"]["f:spec"]["f:limits"]]
    assert sorted(owned) == sorted(f"f:m{number}" for number in range(30))


def test_a_pod_is_tracked_by_container_and_variable() -> None:
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "app", "env": [{"name": "A", "value": "1"}]}]},
    }

    track_update(None, pod, manager="kubectl-create", api_version="v1", now=MONDAY, schema=POD)

    containers = owners(pod)["kubectl-create", "Update"]["f:spec"]["f:containers"]
    assert set(containers['k:{"name":"app"}']["f:env"]) == {'k:{"name":"A"}'}


texts = st.sampled_from(["1", "2"])
keys = st.sampled_from(["a", "b", "c"])
specs = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(1, 3),
        "tags": st.lists(keys, unique=True, max_size=3),
        "args": st.lists(keys, max_size=2),
        "selector": st.dictionaries(keys, texts, max_size=2),
        "limits": st.dictionaries(keys, texts, max_size=3),
        "ports": st.lists(
            st.fixed_dictionaries(
                {"port": st.integers(1, 3)},
                optional={"protocol": st.sampled_from(["TCP", "UDP"]), "name": texts},
            ),
            unique_by=lambda port: (port["port"], port.get("protocol", "TCP")),
            max_size=3,
        ),
    },
)
writes = st.tuples(
    st.sampled_from(["alice", "bob", "carol"]), st.sampled_from(["apply", "force", "update"]), specs
)


def history(steps: list[tuple[str, str, dict[str, Any]]]) -> Object | None:
    """An object after several managers wrote to it; conflicting applies leave it as it was."""
    live: Object | None = None
    for number, (by, verb, spec) in enumerate(steps):
        now = f"2026-06-01T08:00:{number:02}Z"
        if verb == "update":
            live = updated(live, widget(copy.deepcopy(spec)), by=by, now=now)
            continue
        try:
            live = applied(live, spec, by=by, force=verb == "force", now=now)
        except ApplyConflict:
            assert verb == "apply"
    return live


@given(st.lists(writes, max_size=5), specs)
@settings(max_examples=150)
def test_a_forced_apply_ends_with_the_applied_values_and_again_changes_nothing(
    steps: list[tuple[str, str, dict[str, Any]]], spec: dict[str, Any]
) -> None:
    live = history(steps)
    before, asked = copy.deepcopy(live), copy.deepcopy(spec)

    once = applied(live, spec, by="dora", force=True, now=TUESDAY)

    assert holds(once["spec"], spec)
    assert all(once["spec"][name] == spec[name] for name in ("args", "selector") if name in spec)
    assert applied(once, spec, by="dora", now=WEDNESDAY) is once
    assert same(live, before)
    assert same(spec, asked)


@given(st.lists(writes, max_size=4), specs, specs)
@settings(max_examples=150)
def test_removal_leaves_what_others_manage(
    steps: list[tuple[str, str, dict[str, Any]]], mine: dict[str, Any], theirs: dict[str, Any]
) -> None:
    live = applied(history(steps), mine, by="dora", force=True)
    live = applied(live, theirs, by="emil", force=True)

    live = applied(live, {}, by="dora", force=True)

    assert holds(live["spec"], theirs)
    assert owners(live)["dora", "Apply"] == {"f:spec": {}}


@given(specs)
@settings(max_examples=80)
def test_applying_and_abandoning_leaves_no_trace(spec: dict[str, Any]) -> None:
    live = updated(None, widget({"limits": {"keep": "1"}, "tags": ["keep"]}))

    live = applied(applied(live, spec, force=True), {})

    assert live["spec"] == {"limits": {"keep": "1"}, "tags": ["keep"]}


@given(st.dictionaries(keys, texts), st.dictionaries(st.sampled_from(["x", "y", "z"]), texts))
@settings(max_examples=80)
def test_managers_of_disjoint_fields_keep_both(left: dict[str, str], right: dict[str, str]) -> None:
    live = applied(applied(None, {"limits": left}, by="alice"), {"limits": right}, by="bob")
    live = applied(live, {"limits": left}, by="alice", now=TUESDAY)

    assert live["spec"]["limits"] == left | right


def holds(value: Any, wanted: Any) -> bool:
    """Whether everything wanted is in a value; keyed items are found by port and protocol."""
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(
            name in value and holds(value[name], wanted[name]) for name in wanted
        )
    if isinstance(wanted, list) and any(isinstance(item, dict) for item in wanted):
        found = {(item["port"], item.get("protocol", "TCP")): item for item in value}
        return all(holds(found.get((item["port"], item.get("protocol", "TCP"))), item) for item in wanted)
    if isinstance(wanted, list):
        return all(item in value for item in wanted)
    return bool(wanted == value)
