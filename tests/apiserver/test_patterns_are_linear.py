"""RE2 patterns: the meaning of Go's regexp, in time linear in the input."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.cel.patterns import BadPattern, Pattern, compile_pattern

ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\d", r"\w", "[a-c1]", "x?", r"\.", "-"])


def expressions() -> st.SearchStrategy[str]:
    """Patterns that mean the same to Python's re and to RE2."""

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        repeated = st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        )
        return st.one_of(
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
            repeated,
        )

    anchored = st.tuples(st.sampled_from(["", "^"]), st.recursive(ATOMS, extend, max_leaves=6))
    return st.tuples(anchored, st.sampled_from(["", "$"])).map(lambda p: f"{p[0][0]}{p[0][1]}{p[1]}")


@pytest.mark.long
@settings(max_examples=300)
@given(expressions(), st.text(alphabet="abc1x.-", max_size=8))
def test_agrees_with_a_backtracking_matcher(pattern: str, text: str) -> None:
    expected = re.search(pattern.replace("$", r"\Z"), text, re.ASCII)

    compiled = Pattern(pattern)

    assert compiled.matches(text) == (expected is not None)
    assert compiled.find(text) == (expected.group(0) if expected else None)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        pytest.param("^a$", "a\n", False, id="$ is the end of the text, not of the line"),
        pytest.param("(?m)^a$", "b\na\nc", True, id="multi-line"),
        pytest.param("(?i)straSSe", "STRASSE", True, id="ignoring case"),
        pytest.param("(?s)a.b", "a\nb", True, id="dot matches newline when asked"),
        pytest.param("a.b", "a\nb", False, id="dot does not match newline"),
        pytest.param(r"\bcat\b", "a cat sat", True, id="word boundary"),
        pytest.param(r"\bcat\b", "concat", False, id="no word boundary"),
        pytest.param("[[:alpha:]]+[^[:digit:]]$", "abc-", True, id="POSIX classes"),
        pytest.param(r"^\pL+\z", "grün", True, id="Unicode letters"),
        pytest.param(r"^\d$", "٣", False, id="digits are ASCII"),
        pytest.param(r"^\Qa.b\E$", "a.b", True, id="quoted"),
        pytest.param("^[]a]+$", "]a", True, id="a bracket first in a class"),
        pytest.param("^x{,2}$", "x{,2}", True, id="a brace that is no repetition"),
        pytest.param(r"^(?P<y>a|b)(?:c)$", "bc", True, id="named and plain groups"),
        pytest.param("^(a*)*$", "aaaa", True, id="a repetition of what may be empty"),
        pytest.param(r"\x41\x{42}", "AB", True, id="hexadecimal"),
    ],
)
def test_go_syntax(pattern: str, text: str, matches: bool) -> None:
    assert Pattern(pattern).matches(text) is matches


@pytest.mark.parametrize(
    "pattern",
    ["^(a+)+$", r"((.+)\s(.+)\s(.+)\s(.+)\s(.+))$", "^(a|aa)+$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"],
)
def test_patterns_that_explode_elsewhere_return(pattern: str) -> None:
    compiled = Pattern(pattern)

    assert compiled.matches("a" * 20_000 + "!\n") is False


def test_many_different_characters_do_not_pile_up() -> None:
    compiled = Pattern("^[^x]*$")

    assert compiled.matches("".join(map(chr, range(0x4E00, 0x6E00))))


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("(", id="open group"),
        pytest.param("a)", id="closing alone"),
        pytest.param("*a", id="nothing to repeat"),
        pytest.param("a**", id="repetition of a repetition"),
        pytest.param("(?=a)", id="look-ahead"),
        pytest.param("(?<!a)b", id="look-behind"),
        pytest.param(r"(a)\1", id="back-reference"),
        pytest.param("[b-a]", id="range backwards"),
        pytest.param("[a", id="open class"),
        pytest.param("a{2,1}", id="repetition backwards"),
        pytest.param("a{1001}", id="too many repetitions"),
        pytest.param("((a{1000}){1000}){1000}", id="too large"),
        pytest.param("(((){1000}){1000}){1000}", id="repetitions that multiply"),
        pytest.param("a" * 5000, id="too long"),
        pytest.param("\\", id="lone backslash"),
    ],
)
def test_what_re2_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        Pattern(pattern)


@given(st.text(alphabet="ab()[]{}*+?|^$\\.,-0123i:=<>P", max_size=20), st.text(alphabet="ab0", max_size=5))
def test_no_pattern_makes_anything_but_an_answer_or_a_refusal(pattern: str, text: str) -> None:
    try:
        compiled = Pattern(pattern)
    except BadPattern:
        return
    assert compiled.matches(text) == (compiled.find(text) is not None)


def test_compiling_twice_gives_the_same_pattern() -> None:
    assert compile_pattern("^once$") is compile_pattern("^once$")
