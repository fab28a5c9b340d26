"""Value sets against brute force over a small universe, and Karpenter's compatibility rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import SelectorRequirement
from karpool.model.requirements import (
    WELL_KNOWN,
    NodeSelector,
    NodeSelectorTerm,
    ValueSet,
    combined,
    conflict,
    from_labels,
    node_terms_of,
    value_set,
)

ANY = ValueSet(complement=True)

UNIVERSE = ["a", "b", "", "-1", "0", "1", "2", "3", "4", "x1", "9223372036854775808"]
names = st.sampled_from(UNIVERSE)
bounds = st.sampled_from(["0", "1", "2", "3"])


@st.composite
def operator_forms(draw: st.DrawFn) -> tuple[str, tuple[str, ...]]:
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]))
    if operator in ("In", "NotIn"):
        return operator, tuple(draw(st.lists(names, min_size=1, max_size=4)))
    if operator in ("Exists", "DoesNotExist"):
        return operator, ()
    return operator, (draw(bounds),)


def holds(operator: str, values: tuple[str, ...], value: str | None) -> bool:
    """The operators as the Kubernetes documentation explains them."""
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if value is None or not value.lstrip("-").isdigit() or abs(int(value)) >= 2**63:
        return False
    number, bound = int(value), int(values[0])
    return {
        "Gt": number > bound,
        "Lt": number < bound,
        "Gte": number >= bound,
        "Lte": number <= bound,
    }[operator]


value_sets = operator_forms().map(lambda form: value_set(*form))
mixed_sets = st.one_of(value_sets, st.tuples(value_sets, value_sets).map(lambda pair: pair[0] & pair[1]))


@given(operator_forms(), st.one_of(st.none(), names))
def test_a_set_admits_what_its_operator_says(form: tuple[str, tuple[str, ...]], value: str | None) -> None:
    assert value_set(*form).admits(value) == holds(*form, value)


@given(mixed_sets, mixed_sets)
def test_the_members_of_an_intersection_are_the_common_members(first: ValueSet, second: ValueSet) -> None:
    for value in UNIVERSE:
        assert (value in (first & second)) == (value in first and value in second)


@given(mixed_sets, mixed_sets, mixed_sets)
def test_intersection_is_commutative_associative_and_idempotent(
    first: ValueSet, second: ValueSet, third: ValueSet
) -> None:
    assert first & second == second & first
    assert (first & second) & third == first & (second & third)
    assert first & first == first
    assert first & ANY == first


@given(mixed_sets, mixed_sets)
def test_sets_with_a_common_value_intersect(first: ValueSet, second: ValueSet) -> None:
    if any(value in first and value in second for value in UNIVERSE):
        assert first.intersects(second)


@given(mixed_sets, mixed_sets)
def test_finite_sets_without_a_common_value_intersect_only_in_absence(
    first: ValueSet, second: ValueSet
) -> None:
    common = [value for value in UNIVERSE if value in first and value in second]
    if not common and not (first.complement and second.complement):
        assert first.intersects(second) == (first.admits_absence and second.admits_absence)


@given(mixed_sets, mixed_sets)
def test_intersects_is_symmetric(first: ValueSet, second: ValueSet) -> None:
    assert first.intersects(second) == second.intersects(first)


def test_crossed_bounds_leave_nothing() -> None:
    both = value_set("Gt", ["5"]) & value_set("Lt", ["5"])

    assert not any(str(number) in both for number in range(10))
    assert not value_set("Gt", ["5"]).intersects(value_set("Lt", ["5"]))


def test_the_larger_number_of_values_is_kept() -> None:
    first, second = value_set("In", ["a", "b", "c"], 2), value_set("Exists", (), 3)

    assert (first & second).min_values == 3


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (value_set("In", ["b", "a"]), "In (a, b)"),
        (value_set("NotIn", ["a"]), "NotIn (a)"),
        (value_set("Exists"), "Exists"),
        (value_set("DoesNotExist"), "DoesNotExist"),
        (value_set("Gt", ["4"]), ">= 5"),
        (value_set("Gte", ["4"]) & value_set("Lte", ["8"]), ">= 4 and <= 8"),
        (value_set("In", [f"v{n}" for n in range(9)]), "In (v0, v1, v2, v3, v4, v5, v6, v7, ...)"),
    ],
)
def test_sets_are_shown_as_people_write_them(shown: ValueSet, expected: str) -> None:
    assert str(shown) == expected


@pytest.mark.parametrize(
    ("operator", "values", "field"),
    [
        ("in", ["a"], "operator"),
        ("", [], "operator"),
        ("In", [], "values"),
        ("NotIn", [], "values"),
        ("Exists", ["a"], "values"),
        ("DoesNotExist", ["a"], "values"),
        ("Gt", [], "values"),
        ("Gt", ["1", "2"], "values"),
        ("Lt", ["1.5"], "values"),
        ("Gte", ["x"], "values"),
        ("Lte", [str(2**63)], "values"),
    ],
)
def test_a_wrong_operator_or_number_of_values_is_named(operator: str, values: list[str], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        value_set(operator, values)

    assert caught.value.path == field
    assert caught.value.value == (operator if field == "operator" else values)


ZONE = "topology.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("offered", "wanted", "open_keys", "expected"),
    [
        pytest.param({}, {}, frozenset(), None, id="nothing wanted"),
        pytest.param(
            {ZONE: value_set("In", ["a", "b"])},
            {ZONE: value_set("In", ["b"])},
            frozenset(),
            None,
            id="narrower",
        ),
        pytest.param(
            {ZONE: value_set("In", ["a"])}, {ZONE: value_set("In", ["b"])}, frozenset(), ZONE, id="disjoint"
        ),
        pytest.param({}, {"team": value_set("In", ["x"])}, frozenset(), "team", id="undefined label"),
        pytest.param({}, {"team": value_set("Exists")}, frozenset(), "team", id="undefined label must exist"),
        pytest.param({}, {"team": value_set("NotIn", ["x"])}, frozenset(), None, id="undefined label, NotIn"),
        pytest.param(
            {}, {"team": value_set("DoesNotExist")}, frozenset(), None, id="undefined label, absence"
        ),
        pytest.param(
            {}, {ZONE: value_set("In", ["a"])}, WELL_KNOWN, None, id="well-known label is still open"
        ),
        pytest.param(
            {}, {"team": value_set("In", ["x"])}, WELL_KNOWN, "team", id="custom label is never open"
        ),
        pytest.param(
            {"team": value_set("DoesNotExist")},
            {"team": value_set("NotIn", ["x"])},
            frozenset(),
            None,
            id="both absent",
        ),
        pytest.param(
            {"team": value_set("DoesNotExist")},
            {"team": value_set("Exists")},
            frozenset(),
            "team",
            id="absent, wanted",
        ),
        pytest.param(
            {"gen": value_set("Gt", ["4"])},
            {"gen": value_set("In", ["4"])},
            frozenset(),
            "gen",
            id="out of bounds",
        ),
    ],
)
def test_compatibility_follows_karpenter(
    offered: dict[str, ValueSet], wanted: dict[str, ValueSet], open_keys: frozenset[str], expected: str | None
) -> None:
    assert conflict(offered, wanted, open_keys) == expected


def test_old_keys_become_current_ones() -> None:
    found = from_labels({"failure-domain.beta.kubernetes.io/zone": "a", "topology.ebs.csi.aws.com/zone": "a"})

    assert found == {ZONE: value_set("In", ["a"])}


def test_requirements_on_one_key_are_intersected() -> None:
    found = combined({"k": value_set("In", ["a", "b"])}, {"k": value_set("NotIn", ["a"]), "l": ANY})

    assert found == {"k": value_set("In", ["b"]), "l": ANY}


def term(*entries: tuple[str, str, list[str] | None], fields: bool = False) -> NodeSelectorTerm:
    expressions = [SelectorRequirement(key=key, operator=op, values=values) for key, op, values in entries]
    return (
        NodeSelectorTerm(match_fields=expressions)
        if fields
        else NodeSelectorTerm(match_expressions=expressions)
    )


def compiled(*terms: NodeSelectorTerm) -> int:
    found = node_terms_of(NodeSelector(node_selector_terms=list(terms)))
    assert found is not None
    return len(found)


def test_no_affinity_is_not_the_same_as_an_empty_one() -> None:
    assert node_terms_of(None) is None
    assert node_terms_of(NodeSelector()) == ()


@pytest.mark.parametrize(
    "unusable",
    [
        pytest.param(NodeSelectorTerm(), id="empty"),
        pytest.param(term(("a", "Gte", ["1"])), id="Karpenter's operator"),
        pytest.param(term(("a", "In", [])), id="In without values"),
        pytest.param(term(("a b", "Exists", None)), id="bad key"),
        pytest.param(term(("a", "In", ["x y"])), id="bad value"),
        pytest.param(term(("a", "Gt", ["-1"])), id="negative bound is no label value"),
        pytest.param(term(("metadata.name", "In", ["a", "b"]), fields=True), id="field with two values"),
        pytest.param(term(("metadata.name", "Exists", None), fields=True), id="field that exists"),
    ],
)
def test_a_term_that_cannot_be_used_matches_nothing_and_spoils_no_other(unusable: NodeSelectorTerm) -> None:
    assert compiled(unusable) == 0
    assert compiled(unusable, term(("a", "Exists", None))) == 1


def test_a_field_term_selects_by_node_name() -> None:
    found = node_terms_of(
        NodeSelector(node_selector_terms=[term(("metadata.name", "In", ["node-1"]), fields=True)])
    )

    assert found is not None
    assert found[0].fields == (("metadata.name", value_set("In", ["node-1"])),)
