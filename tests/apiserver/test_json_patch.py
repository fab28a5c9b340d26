import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool_fleet.apiserver.patches.json_patch import PatchError, PatchTestFailed, json_patch
from karpool_fleet.apiserver.patches.values import same

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "a/b", "m~n", "0", "-"])
names = st.sampled_from(["a", "b", "a/b", "m~n", "", "0", " x"])
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(names, json_values, max_size=4)

operations = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": st.sampled_from(["", "/a", "/a/0", "/a/-", "/b/a~1b", "/x"]),
        "from": st.sampled_from(["", "/a", "/b", "/a/0"]),
        "value": json_values,
    }
)


def escaped(token: object) -> str:
    return str(token).replace("~", "~0").replace("/", "~1")


def pointers(value: object, prefix: str = "") -> list[str]:
    """Every place in a document except the root."""
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    found = []
    for token, member in members:
        here = f"{prefix}/{escaped(token)}"
        found += [here, *pointers(member, here)]
    return found


@pytest.mark.parametrize(
    ("doc", "ops", "expected"),
    [
        pytest.param({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}, id="add member"),
        pytest.param({"a": 1}, [{"op": "add", "path": "/a", "value": 2}], {"a": 2}, id="add over a member"),
        pytest.param([1, 3], [{"op": "add", "path": "/1", "value": 2}], [1, 2, 3], id="add inserts"),
        pytest.param([1], [{"op": "add", "path": "/1", "value": 2}], [1, 2], id="add at the end by index"),
        pytest.param([1], [{"op": "add", "path": "/-", "value": [2]}], [1, [2]], id="add after the last"),
        pytest.param({"a": 1}, [{"op": "add", "path": "", "value": []}], [], id="add replaces the document"),
        pytest.param({"a": 1}, [{"op": "add", "path": "/b/", "value": 2}], None, id="add below nothing"),
        pytest.param({"": {"": 1}}, [{"op": "remove", "path": "//"}], {"": {}}, id="empty names are names"),
        pytest.param({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}, id="remove from a list"),
        pytest.param({"a": 1}, [{"op": "remove", "path": "/b"}], None, id="remove nothing"),
        pytest.param({"a": None}, [{"op": "remove", "path": "/a"}], {}, id="null is a value to remove"),
        pytest.param({"a": 1}, [{"op": "remove", "path": ""}], None, id="remove the document"),
        pytest.param({"a": [1]}, [{"op": "replace", "path": "/a/0", "value": {}}], {"a": [{}]}, id="replace"),
        pytest.param({"a": 1}, [{"op": "replace", "path": "/b", "value": 1}], None, id="replace nothing"),
        pytest.param({"a": 1}, [{"op": "replace", "path": "", "value": 5}], 5, id="replace the document"),
        pytest.param({"a": {"x": 1}, "b": {}}, [{"op": "move", "from": "/a/x", "path": "/b/y"}],
                     {"a": {}, "b": {"y": 1}}, id="move"),
        pytest.param([1, 2, 3], [{"op": "move", "from": "/0", "path": "/2"}], [2, 3, 1], id="move in a list"),
        pytest.param({"a": {}}, [{"op": "move", "from": "/a", "path": "/a/b"}], None, id="move into itself"),
        pytest.param({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}, id="move onto itself"),
        pytest.param({"a": 1}, [{"op": "move", "from": "/b", "path": "/b"}], None, id="move nothing"),
        pytest.param({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"},
                                  {"op": "add", "path": "/b/-", "value": 2}],
                     {"a": [1], "b": [1, 2]}, id="a copy is a value of its own"),
        pytest.param({"a": [1]}, [{"op": "copy", "from": "", "path": "/b"}], {"a": [1], "b": {"a": [1]}},
                     id="copy the document into itself"),
        pytest.param({"m~n": 1, "a/b": 2}, [{"op": "remove", "path": "/m~0n"},
                                            {"op": "test", "path": "/a~1b", "value": 2}],
                     {"a/b": 2}, id="escapes"),
        pytest.param({"~1": 9}, [{"op": "test", "path": "/~01", "value": 9}], {"~1": 9}, id="~01 is ~1"),
        pytest.param([1], [{"op": "add", "path": "/2", "value": 0}], None, id="index past the end"),
        pytest.param([1, 2], [{"op": "remove", "path": "/01"}], None, id="leading zero"),
        pytest.param([1, 2], [{"op": "remove", "path": "/-1"}], None, id="negative index"),
        pytest.param([1, 2], [{"op": "remove", "path": "/-"}], None, id="remove after the last"),
        pytest.param([1, 2], [{"op": "remove", "path": "/١"}], None, id="other digits"),
        pytest.param("text", [{"op": "add", "path": "/0", "value": 0}], None, id="member of a string"),
        pytest.param({}, [], {}, id="no operations"),
    ],
)  # fmt: skip
def test_operations(doc: object, ops: list[object], expected: object) -> None:
    if expected is None:
        with pytest.raises(PatchError) as caught:
            json_patch(doc, ops)
        assert caught.value.status_reason == "Invalid"
    else:
        assert same(json_patch(doc, ops), expected)


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        pytest.param({"n": 1, "b": True, "l": [1, 2]}, True, id="member order does not matter"),
        pytest.param({"b": True, "l": [2, 1], "n": 1}, False, id="item order does"),
        pytest.param({"b": 1, "l": [1, 2], "n": 1}, False, id="1 is not true"),
        pytest.param({"b": True, "l": [1, 2], "n": 1.0}, True, id="1.0 is 1"),
        pytest.param({"b": True, "l": [1, 2]}, False, id="a member is missing"),
        pytest.param(None, False, id="null"),
    ],
)
def test_test_compares_values(value: object, passes: bool) -> None:
    doc = {"x": {"b": True, "l": [1, 2], "n": 1}}
    ops = [{"op": "test", "path": "/x", "value": value}]
    if passes:
        assert json_patch(doc, ops) == doc
    else:
        with pytest.raises(PatchTestFailed, match="expected"):
            json_patch(doc, ops)


def test_a_failed_test_says_where_and_what_was_found() -> None:
    with pytest.raises(PatchTestFailed) as caught:
        json_patch({"spec": {"replicas": 3}}, [{"op": "test", "path": "/spec/replicas", "value": 2}])

    assert str(caught.value) == "operation 0 (test '/spec/replicas'): expected 2, found 3"


def test_testing_an_absent_member_is_a_failed_test() -> None:
    with pytest.raises(PatchTestFailed, match="no member 'b'"):
        json_patch({"a": 1}, [{"op": "test", "path": "/b", "value": None}])


@pytest.mark.parametrize(
    "ops",
    [
        {"op": "add"},
        ["add"],
        [{"op": "increment", "path": "/a"}],
        [{"op": ["add"], "path": "/a"}],
        [{"op": "add", "path": "/a"}],
        [{"op": "add", "path": 7, "value": 1}],
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "add", "path": "/a~2", "value": 1}],
        [{"op": "move", "path": "/a"}],
        [{"op": "add", "path": "/a" * 200, "value": 1}],
    ],
)
def test_a_malformed_patch_is_a_bad_request(ops: object) -> None:
    with pytest.raises(PatchError) as caught:
        json_patch({"a": 1}, ops)

    assert caught.value.status_reason == "BadRequest"


def test_the_number_of_operations_is_bounded() -> None:
    ops = [{"op": "test", "path": "/a", "value": 1}]

    assert json_patch({"a": 1}, ops * 10_000) == {"a": 1}
    with pytest.raises(PatchError) as caught:
        json_patch({"a": 1}, ops * 10_001)
    assert caught.value.status_reason == "RequestEntityTooLarge"


def test_copies_cannot_blow_a_document_up() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": "/a/-"}] * 60

    with pytest.raises(PatchError) as caught:
        json_patch({"a": ["x" * 100]}, doubling)

    assert caught.value.status_reason == "RequestEntityTooLarge"


def test_the_result_cannot_nest_without_end() -> None:
    chain = [{"op": "copy", "from": "/a", "path": f"/a{'/0' * 100}"}] * 5

    with pytest.raises(PatchError, match="deeper than 256"):
        json_patch({"a": nested(100)}, chain)


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.long
@given(documents, json_values, st.data())
@settings(max_examples=100)
def test_remove_undoes_add(doc: dict[str, object], value: object, data: st.DataObject) -> None:
    parents = ["", *[place for place in pointers(doc) if isinstance(at(doc, place), dict | list)]]
    parent = data.draw(st.sampled_from(parents))
    target = at(doc, parent)
    token = "new" if isinstance(target, dict) else str(data.draw(st.integers(0, len(target))))
    before = copy.deepcopy(doc)

    added = json_patch(doc, [{"op": "add", "path": f"{parent}/{token}", "value": value}])

    assert same(at(added, f"{parent}/{token}"), value)
    assert same(json_patch(added, [{"op": "remove", "path": f"{parent}/{token}"}]), before)
    assert same(doc, before)


@pytest.mark.long
@given(documents)
@settings(max_examples=100)
def test_every_place_can_be_tested_replaced_and_left_by_moving_back(doc: dict[str, object]) -> None:
    before = copy.deepcopy(doc)
    for place in pointers(doc):
        ops = [
            {"op": "test", "path": place, "value": at(doc, place)},
            {"op": "replace", "path": place, "value": "other"},
            {"op": "replace", "path": place, "value": at(doc, place)},
            {"op": "move", "from": place, "path": "/elsewhere"},
            {"op": "move", "from": "/elsewhere", "path": place},
        ]
        assert same(json_patch(doc, ops), before)
    assert same(doc, before)


@pytest.mark.long
@given(documents, st.lists(operations, max_size=6))
@settings(max_examples=150)
def test_a_patch_applies_or_fails_cleanly_and_never_changes_its_input(
    doc: dict[str, object], ops: list[object]
) -> None:
    before, asked = copy.deepcopy(doc), copy.deepcopy(ops)
    try:
        json_patch(doc, ops)
    except PatchError as error:
        assert error.status_reason in ("Invalid", "BadRequest")
    assert same(doc, before)
    assert same(ops, asked)


def at(doc: object, pointer: str) -> object:
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        doc = doc[int(name)] if isinstance(doc, list) else doc[name]
    return doc
