"""CEL: what validation rules mean, and that hostile ones end."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.cel.syntax import CelCompileError
from karpool_fleet.apiserver.schema.cel_rules import compile_rule
from karpool_fleet.apiserver.schema.compiled import StructuralSchema, unsupported_rules
from karpool_fleet.apiserver.schema.structure import read_schema


def holds(rule: str, value: Any, old: Any = None) -> bool:
    return compile_rule({"rule": rule}).broken(value, old) is None


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self == 1 + 2 * 3 - 4 / 2", 5),
        ("-7 / 2 == -3 && -7 % 2 == -1", 0),
        ("self != ''", "x"),
        ("self in ['a', \"b\"]", "b"),
        ("'k' in self && self['k'] == 2", {"k": 2}),
        ("has(self.a) && !has(self.b)", {"a": 0}),
        ("self.all(x, x > 0) && self.exists(x, x == 3) && self.exists_one(x, x < 2)", [1, 2, 3]),
        ("self.filter(x, x > 1).size() == 2 && self.map(x, x * 2) == [2, 4, 6]", [1, 2, 3]),
        ("self.map(x, x > 1, x + 1) == [3, 4]", [1, 2, 3]),
        ("self.all(k, k.startsWith('a') && k.endsWith('z'))", {"a-z": 1}),
        ("size(self) == 2 && self.size() == 2 && self[1] == 'b'", ["a", "b"]),
        ("self.matches('^[a-z]+$') && self.contains('b') && self.find('b+') == 'bb'", "abbc"),
        ("int(self) == 42 && string(42) == self && double('1.5') == 1.5", "42"),
        ("self.split('/').size() == 2 && ['a', 'b'].join('/') == self", "a/b"),
        ("self.lowerAscii() == 'abc' && self.substring(1) == 'Bc' && self.indexOf('c') == 2", "aBc"),
        ("self.a__dash__b == 1 && self.__dot____dot__ == 2", {"a-b": 1, "..": 2}),
        ("self ? 1 < 2 : false", True),
        ("true || self.missing == 1", {}),
        ("self.missing == 1 || true", {}),
        ("!(false && self.missing == 1)", {}),
        ("1.0 == 1 && 0x10 == 16 && 1e3 == 1000.0", None),
        ('\'\\n\\u0041\\\'\' == r"""\nA\'"""', None),
        ("{'a': [1]}.a[0] == 1 && null == self", None),
        ("self.isSorted() && self.sum() == 6 && self.min() == 1 && self.max() == 3", [1, 2, 3]),
    ],
)
def test_rules_that_hold(rule: str, value: Any) -> None:
    assert holds(rule, value)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self == true", 1),
        ("self.missing == 1", {}),
        ("self / 0 == 1", 1),
        ("self[5] == 1", [1]),
        ("self < 'a'", 1),
        ("self + 1 == 2", "1"),
        ("int(self) == 1", "one"),
        ("self.all(x, x)", [1]),
        ("self", "text"),
    ],
)
def test_rules_that_are_broken_or_cannot_be_evaluated_refuse(rule: str, value: Any) -> None:
    assert not holds(rule, value)


def test_messages_come_from_the_rule() -> None:
    fixed = compile_rule({"rule": "self > 3", "message": "too small"})
    computed = compile_rule({"rule": "self > 3", "messageExpression": "'got ' + string(self)"})
    plain = compile_rule({"rule": "self > 3"})

    assert fixed.broken(1) == "too small"
    assert computed.broken(1) == "got 1"
    assert "self > 3" in str(plain.broken(1))


@pytest.mark.parametrize(
    "rule",
    [
        "quantity(self) > 1",
        "duration(self) > 1",
        "self.foo() == 1",
        "unknown == 1",
        "self ==",
        "(" * 500,
    ],
)
def test_what_is_not_understood_is_listed_and_not_half_evaluated(rule: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "x-kubernetes-validations": [{"rule": rule}]}},
    }

    with pytest.raises(CelCompileError):
        compile_rule({"rule": rule})
    root = read_schema(schema)

    assert [(path, text) for path, text, _ in unsupported_rules(root)] == [("a", rule)]
    assert StructuralSchema(root).validate({"a": "x"}) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "rule",
    [
        "self.all(a, self.all(b, self.all(c, self.all(d, a + b + c + d > 0))))",
        "self.all(x, !(0 in self))",
        "self.all(x, self == oldSelf)",
        "self.all(x, size(self + self) > 0)",
        "self.all(x, !self.map(y, string(y)).join(',').matches('x'))",
    ],
)
def test_a_rule_that_would_take_for_ever_is_cut_off(rule: str) -> None:
    broken = compile_rule({"rule": rule}).broken([1] * 3000, [1] * 3000)

    assert "steps" in str(broken)


def test_a_large_object_can_be_compared() -> None:
    large = [{"a": 1}] * 300_000

    assert holds("self == oldSelf", large, list(large))


def test_replacing_cannot_fill_the_memory() -> None:
    assert not holds("self.replace('', self).replace('', self).size() > 0", "a" * 10_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
RULES = (
    "self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)",
    "self == oldSelf",
    "has(self.a) == has(oldSelf.a)",
    "self[0] + self[1] == self[2]",
    "self.map(x, x[x]).exists(y, y in self)",
    "{self: 1}[self] == 1",
    "self.split(self)[self] < self.join(self)",
    "self % self == -self",
)


@given(st.sampled_from(RULES), JSON, JSON)
def test_any_value_gets_an_answer(rule: str, value: Any, old: Any) -> None:
    broken = compile_rule({"rule": rule}).broken(value, old)

    assert broken is None or isinstance(broken, str)


def test_a_rule_of_thousands_of_terms_is_refused() -> None:
    with pytest.raises(CelCompileError):
        compile_rule({"rule": "+".join(["1"] * 4000) + " > 0"})


def test_comments_are_skipped_however_many_there_are() -> None:
    assert holds("// one\nself == 1 // two\n // three", 1)
    with pytest.raises(CelCompileError):
        compile_rule({"rule": "// " * 2000 + "\n" + "//// " * 500 + "\n`"})
