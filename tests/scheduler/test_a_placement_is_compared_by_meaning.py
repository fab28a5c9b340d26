"""The annotation of the placement that was applied, and the placement of now: the same, or not.

And what is written then: only what changes, and nothing when nothing does.
"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.karmada.binding import Binding, BindingKey, TargetCluster
from karpool.model.karmada.names import APPLIED_PLACEMENT
from karpool.scheduler.controller.binding_writer import placement_text, result_patch, same_placement

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


@pytest.mark.long
@given(placements)
def test_fields_that_say_nothing_make_no_difference(placement):
    assert same_placement(placement_text(placement), placement)
    assert same_placement(placement_text(padded(placement)), placement)
    assert same_placement(placement_text(placement), padded(placement))


@pytest.mark.long
@given(placements)
def test_whatever_says_something_makes_one(placement):
    for path in paths(placement):
        other = changed(placement, path)
        assert not same_placement(placement_text(other), placement)
        assert not same_placement(placement_text(placement), other)


@pytest.mark.long
@given(placements, st.text(max_size=20))
def test_what_is_missing_or_unreadable_is_not_the_same(placement, text):
    assert not same_placement(None, placement)
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        assert not same_placement(text, placement)


targets = st.lists(st.builds(TargetCluster, st.sampled_from(["a", "b"]), st.integers(0, 2)), max_size=2).map(
    tuple
)
notes = st.dictionaries(st.sampled_from(["promise", "reason"]), st.sampled_from(["x", "y"]), max_size=2)


@pytest.mark.long
@given(placements, st.none() | placements, targets, targets, notes, notes)
def test_only_what_changes_is_written(placement, applied, before, now, held, wanted):
    known = dict(held) if applied is None else {**held, APPLIED_PLACEMENT: placement_text(applied)}
    binding = Binding(
        BindingKey("ResourceBinding", "team", "web"),
        raw_placement=placement,
        targets=before,
        annotations=known,
        resource_version="7",
    )

    patch = result_patch(binding, now, wanted)

    moved, replaced = now != before, not same_placement(known.get(APPLIED_PLACEMENT), placement)
    if not moved and not replaced:
        assert patch is None
        return
    assert patch is not None and patch["metadata"]["resourceVersion"] == "7"
    assert ("spec" in patch) == moved
    if moved:
        assert patch["spec"]["clusters"] == ([target.to_json() for target in now] or None)
    news = {name: text for name, text in wanted.items() if moved and held.get(name) != text}
    news |= {APPLIED_PLACEMENT: placement_text(placement)} if replaced else {}
    assert patch["metadata"].get("annotations", {}) == news
