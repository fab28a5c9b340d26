"""Label syntax, and selectors against a twin that knows only loops and comparisons."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import LabelSelector, SelectorRequirement
from karpool.model.labels import (
    LabelMatcher,
    LabelRequirement,
    check_key,
    check_labels,
    check_value,
    integer,
    parse_selector,
)

keys = st.sampled_from(["a", "b", "example.com/c"])
values = st.sampled_from(["", "x", "y", "1", "2", "10", "9999999999999999999999", "01"])
label_maps = st.dictionaries(keys, values, max_size=3)
operators = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"])


@st.composite
def entries(draw: st.DrawFn) -> SelectorRequirement:
    operator = draw(operators)
    chosen = draw(st.lists(values, min_size=1, max_size=3)) if operator in ("In", "NotIn") else None
    return SelectorRequirement(key=draw(keys), operator=operator, values=chosen)


def holds(entry: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    here = entry.key in labels
    if entry.operator == "Exists":
        return here
    if entry.operator == "DoesNotExist":
        return not here
    found = any(here and labels[entry.key] == value for value in entry.values or [])
    return found if entry.operator == "In" else not found


@given(st.dictionaries(keys, values, max_size=2), st.lists(entries(), max_size=3), label_maps)
def test_a_selector_object_is_the_conjunction_of_its_entries(
    match: dict[str, str], expressions: list[SelectorRequirement], labels: dict[str, str]
) -> None:
    selector = LabelSelector(match_labels=match, match_expressions=expressions).compile()

    expected = all(labels.get(key) == value for key, value in match.items())
    assert selector.matches(labels) == (expected and all(holds(entry, labels) for entry in expressions))


WRITTEN = {
    "In": lambda entry: f"{entry.key} in ({','.join(entry.values)})",
    "NotIn": lambda entry: f"{entry.key} notin ( {' , '.join(entry.values)} )",
    "Exists": lambda entry: entry.key,
    "DoesNotExist": lambda entry: f"! {entry.key}",
}


@given(st.lists(entries(), max_size=3), label_maps)
def test_the_query_form_means_the_same_as_the_object_form(
    expressions: list[SelectorRequirement], labels: dict[str, str]
) -> None:
    text = " , ".join(WRITTEN[entry.operator](entry) for entry in expressions)

    assert parse_selector(text).matches(labels) == all(holds(entry, labels) for entry in expressions)


@given(keys, st.sampled_from("<>"), st.integers(-20, 20), label_maps)
def test_comparisons_read_integers_and_nothing_else(
    key: str, sign: str, bound: int, labels: dict[str, str]
) -> None:
    value = labels.get(key, "")
    readable = value.lstrip("-").isdigit() and abs(int(value)) < 2**63
    expected = readable and (int(value) > bound if sign == ">" else int(value) < bound)

    assert parse_selector(f"{key}{sign}{bound}").matches(labels) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", LabelMatcher(), id="empty selects everything"),
        pytest.param("  ", LabelMatcher(), id="blank selects everything"),
        pytest.param("a=b", LabelMatcher((LabelRequirement("a", "In", frozenset("b")),)), id="equals"),
        pytest.param(
            "a==b", LabelMatcher((LabelRequirement("a", "In", frozenset("b")),)), id="double equals"
        ),
        pytest.param("a!=b", LabelMatcher((LabelRequirement("a", "NotIn", frozenset("b")),)), id="differs"),
        pytest.param("a=", LabelMatcher((LabelRequirement("a", "In", frozenset([""])),)), id="empty value"),
        pytest.param(
            "a in ()", LabelMatcher((LabelRequirement("a", "In", frozenset([""])),)), id="empty set"
        ),
        pytest.param(
            "x/a in (b,c),!d",
            LabelMatcher(
                (LabelRequirement("x/a", "In", frozenset("bc")), LabelRequirement("d", "DoesNotExist"))
            ),
            id="two terms",
        ),
    ],
)
def test_query_forms(text: str, expected: LabelMatcher) -> None:
    assert parse_selector(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("a,", ",a", "a b", "a=b=c", "!a=b", "a in b", "a in (b", "a) in (b", "=a", "a>x", "a<1.5", "a=b c"),
        *("-a", "a in (b c)", "a~b", "a" * 64, "a=" + "b" * 64, "a" * 70000),
    ],
    ids=lambda text: text[:12],
)
def test_a_malformed_query_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_selector(text)

    assert len(str(caught.value)) < 400


@given(st.text(max_size=40))
def test_any_text_is_a_selector_or_invalid(text: str) -> None:
    try:
        assert parse_selector(text).matches({"a": "b"}) in (True, False)
    except Invalid as error:
        assert error.reason


@pytest.mark.parametrize("operator", ["Gt", "Lt", "in", "", "Equals"])
def test_an_unknown_operator_is_named_with_its_place(operator: str) -> None:
    selector = LabelSelector(
        match_expressions=[
            SelectorRequirement(key="a", operator="Exists"),
            SelectorRequirement(key="a", operator=operator, values=["1"]),
        ]
    )

    with pytest.raises(Invalid, match=r"matchExpressions\[1\]\.operator: .*must be In, NotIn") as caught:
        selector.compile()

    assert caught.value.value == operator


@pytest.mark.parametrize("key", ["a", "A-b_c.d9", "a" * 63, "example.com/a", "a" * 253 + "/b", "1/2"])
def test_good_keys(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "-a",
        "a-",
        "a b",
        "a/b/c",
        "Example.com/a",
        "a" * 64,
        "a" * 254 + "/b",
        "é",
        "a\n",
        "_/a",
    ],
)
def test_bad_keys_are_named(key: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_key(key)

    assert caught.value.value == key


@pytest.mark.parametrize("value", ["", "a", "0", "A.b_c-d", "v" * 63])
def test_good_values(value: str) -> None:
    check_value(value)


@pytest.mark.parametrize("value", ["-", "a.", " ", "a/b", "v" * 64, "ü", "a\n"])
def test_bad_values_are_named_with_their_key(value: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_labels({"team": value})

    assert caught.value.path.startswith("team")
    assert caught.value.value == value


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("-7", -7), ("+7", 7), ("007", 7), (str(2**63 - 1), 2**63 - 1), (str(-(2**63)), -(2**63))]
    + [(text, None) for text in ("", "1.0", " 1", "1_0", "0x1", str(2**63), "9" * 500, "²", "١")],
)
def test_integers_are_read_as_go_reads_them(text: str, number: int | None) -> None:
    assert integer(text) == number
