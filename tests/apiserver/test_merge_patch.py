import copy

import pytest
from hypothesis import given, settings

from karpool_fleet.apiserver.patches.json_patch import PatchError
from karpool_fleet.apiserver.patches.patch import merge_patch
from karpool_fleet.apiserver.patches.values import same
from tests.apiserver.test_json_patch import documents, json_values


@pytest.mark.parametrize(
    ("doc", "patch", "expected"),
    [
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, id="replaces"),
        pytest.param({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, id="adds"),
        pytest.param({"a": 1}, {"a": None}, {}, id="null removes"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="null removes only its member"),
        pytest.param({"a": 1}, {"b": None}, {"a": 1}, id="null for what is not there"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="lists are replaced"),
        pytest.param({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}, id="a map over a list"),
        pytest.param({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}, id="a list over a map"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": None}}, {"a": {"b": 3}}, id="nested"),
        pytest.param({"a": [{"b": 1}]}, {"a": [1, None]}, {"a": [1, None]}, id="null inside a list stays"),
        pytest.param({}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}, id="null below a new map vanishes"),
        pytest.param({"e": None}, {"a": 1}, {"e": None, "a": 1}, id="a null of the object stays"),
        pytest.param([1], {"a": 1, "b": None}, {"a": 1}, id="a map over another document"),
        pytest.param({"a": 1}, "text", "text", id="not a map replaces all"),
        pytest.param({"a": 1}, None, None, id="null replaces all"),
        pytest.param({"a": {"b": 1}}, {"a": "x"}, {"a": "x"}, id="a scalar over a map"),
    ],
)
def test_cases(doc: object, patch: object, expected: object) -> None:
    assert same(merge_patch(doc, patch), expected)


def test_members_keep_their_place() -> None:
    assert list(merge_patch({"a": 1, "b": 2, "c": 3}, {"b": 5, "d": 6})) == ["a", "b", "c", "d"]


def test_a_bottomless_patch_is_refused() -> None:
    patch: object = 1
    for _ in range(5000):
        patch = {"a": patch}

    with pytest.raises(PatchError, match="too deeply"):
        merge_patch({}, patch)


@pytest.mark.long
@given(documents)
@settings(max_examples=100)
def test_the_empty_patch_changes_nothing(doc: object) -> None:
    assert same(merge_patch(doc, {}), doc)


@given(json_values, json_values)
@settings(max_examples=150)
def test_a_patch_is_idempotent_and_changes_neither_argument(doc: object, patch: object) -> None:
    before, asked = copy.deepcopy(doc), copy.deepcopy(patch)

    once = merge_patch(doc, patch)

    assert same(merge_patch(once, patch), once)
    assert same(doc, before)
    assert same(patch, asked)


@pytest.mark.long
@given(documents, documents)
@settings(max_examples=150)
def test_the_difference_of_two_objects_without_nulls_turns_one_into_the_other(
    source: dict[str, object], target: dict[str, object]
) -> None:
    old, new = without_nulls(source), without_nulls(target)

    assert same(merge_patch(old, difference(old, new)), new)


def without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return value


def difference(old: object, new: object) -> object:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch: dict[str, object] = {name: None for name in old if name not in new}
    patch.update({name: difference(old.get(name), member) for name, member in new.items()})
    return patch
