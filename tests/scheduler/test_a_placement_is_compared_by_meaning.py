"""The annotation of the placement that was applied, and the placement of now: the same, or not."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from karpool.scheduler.controller.binding_writer import placement_text, same_placement

EMPTY = (None, "", 0, False, {}, [])
names = st.sampled_from(["clusterAffinity", "clusterNames", "spreadConstraints", "replicaScheduling", "x"])
leaves = st.sampled_from([1, 2, True, "a", "b", "", 0, False, None])
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
placements = st.dictionaries(names, values, max_size=4)


def paths(value, at=()):
    """Every leaf that says something, and where it is."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from paths(item, (*at, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from paths(item, (*at, number))
    elif value not in EMPTY:
        yield at


def changed(value, path):
    if not path:
        return "something else"
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:])
    return copy


def padded(value):
    """The same with fields that say nothing, as other writers leave them."""
    if isinstance(value, dict):
        more = {f"none{number}": nothing for number, nothing in enumerate(EMPTY)}
        return {name: padded(item) for name, item in value.items()} | more
    return [padded(item) for item in value] if isinstance(value, list) else value


@given(placements)
def test_fields_that_say_nothing_make_no_difference(placement):
    assert same_placement(placement_text(placement), placement)
    assert same_placement(placement_text(padded(placement)), placement)
    assert same_placement(placement_text(placement), padded(placement))


@given(placements)
def test_whatever_says_something_makes_one(placement):
    for path in paths(placement):
        other = changed(placement, path)
        assert not same_placement(placement_text(other), placement)
        assert not same_placement(placement_text(placement), other)


@given(placements, st.text(max_size=20))
def test_what_is_missing_or_unreadable_is_not_the_same(placement, text):
    assert not same_placement(None, placement)
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        assert not same_placement(text, placement)
