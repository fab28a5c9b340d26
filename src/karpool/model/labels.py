"""Label syntax and label selectors, as Kubernetes writes and matches them.

A `LabelMatcher` is a conjunction of `LabelRequirement`s over a label map. It comes from the query form (`app
in (a,b),!legacy`), or from the object form (`matchLabels`/`matchExpressions`). Requirements over node labels
with numeric operators and set algebra are in `requirements`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from karpool.model.errors import Invalid

NAME_MAX = 63
PREFIX_MAX = 253
_REMEMBERED = 4096  # caches valid keys and values: nodes and pods repeat the same ones
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_DNS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")


@lru_cache(_REMEMBERED)
def check_key(key: str) -> None:
    """Raise Invalid unless `key` is a qualified name: an optional DNS prefix, a slash, a name."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or len(prefix) > PREFIX_MAX or not _DNS.match(prefix)):
        raise Invalid("key", key, "the part before / must be a lower-case DNS name of at most 253 characters")
    if len(name) > NAME_MAX or not _NAME.match(name):
        raise Invalid(
            "key",
            key,
            "must be 1 to 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit",
        )


@lru_cache(_REMEMBERED)
def check_value(value: str) -> None:
    if value and (len(value) > NAME_MAX or not _NAME.match(value)):
        raise Invalid(
            "value",
            value,
            "must be empty, or 1 to 63 letters, digits, '-', '_' or '.', "
            "and begin and end with a letter or digit",
        )


def check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        check_key(key)
        try:
            check_value(value)
        except Invalid as error:
            raise error.at(key) from None


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One condition on one label. `In`, `NotIn`, `Exists`, `DoesNotExist`; `Gt` and `Lt` in queries."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                if value is None or (number := integer(value)) is None:
                    return False
                bound = int(next(iter(self.values)))
                return number > bound if self.operator == "Gt" else number < bound
        raise AssertionError(self.operator)


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """All requirements must hold; none at all selects everything."""

    requirements: tuple[LabelRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


EVERYTHING = LabelMatcher()


def requirement(key: str, operator: str, values: Iterable[str] = ()) -> LabelRequirement:
    """Return a checked requirement of a label selector; raises Invalid."""
    chosen = tuple(values)
    check_key(key)
    if operator in ("In", "NotIn"):
        if not chosen:
            raise Invalid("values", list(chosen), f"{operator} needs at least one value")
        for value in chosen:
            check_value(value)
    elif operator in ("Exists", "DoesNotExist"):
        if chosen:
            raise Invalid("values", list(chosen), f"{operator} takes no values")
    elif operator in ("Gt", "Lt"):
        if len(chosen) != 1 or integer(chosen[0]) is None:
            raise Invalid("values", list(chosen), f"{operator} needs exactly one integer")
    else:
        raise Invalid("operator", operator, "must be In, NotIn, Exists or DoesNotExist")
    return LabelRequirement(key, operator, frozenset(chosen))


def parse_selector(text: str) -> LabelMatcher:
    """Parse the query form: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`, `a>1`, `a<1`."""
    if len(text) > 64 * 1024:
        raise Invalid("labelSelector", text, "is longer than 64 KiB")
    return LabelMatcher(tuple(_parse_term(term) for term in _split_terms(text)))


def _split_terms(text: str) -> list[str]:
    terms: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "," and depth == 0:
            terms.append(text[start:position])
            start = position + 1
    if depth != 0:
        raise Invalid("labelSelector", text, "has an unbalanced parenthesis")
    terms.append(text[start:])
    if terms == [""] or not text.strip():
        return []
    return terms


_SET_TERM = re.compile(r"\s*(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\s*\Z")
_TERM = re.compile(
    r"\s*(?P<not>!\s*)?(?P<key>[^\s=!<>(),]+)\s*((?P<op>==|=|!=|>|<)\s*(?P<value>[^\s=!<>(),]*)\s*)?\Z"
)
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt", "in": "In", "notin": "NotIn"}


def _parse_term(term: str) -> LabelRequirement:
    if match := _SET_TERM.match(term):
        values = [value.strip() for value in match["values"].split(",")]
        return requirement(match["key"], _OPERATORS[match["op"]], values)
    match = _TERM.match(term)
    if match is None or (match["not"] and match["op"]):
        raise Invalid("labelSelector", term, "is not a term like a=b, a!=b, a in (b,c), a or !a")
    if match["op"]:
        return requirement(match["key"], _OPERATORS[match["op"]], [match["value"]])
    return requirement(match["key"], "DoesNotExist" if match["not"] else "Exists")


def integer(text: str) -> int | None:
    """Parse a base-10 int64 like Go's ParseInt: a sign and ASCII digits, no spaces, no underscores."""
    if len(text) > 20 or not re.fullmatch(r"[+-]?[0-9]+", text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
