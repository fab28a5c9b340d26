"""The ConfigMap of the priority expander: numbers, and patterns of the groups that have them."""

from collections.abc import Iterable
from typing import Any

from karpool.model.cel.patterns import BadPattern, compile_pattern
from karpool.model.errors import Invalid
from karpool.model.safe_yaml import UnusableYaml, load_documents

NAME = "cluster-autoscaler-priority-expander"
_PATTERNS_MAX = 100


def ranks(text: str, groups: Iterable[str]) -> dict[str, int]:
    """The highest number whose patterns match, for every group that has one. Raises Invalid."""
    priorities: dict[str, int] = {}
    names = list(groups)
    for number, patterns in _entries(text):
        for pattern in patterns:
            try:
                matcher = compile_pattern(str(pattern))
            except BadPattern as error:
                raise Invalid(f"priorities.{number}", pattern, str(error)) from None
            for name in names:
                if number > priorities.get(name, -1) and matcher.matches(name):
                    priorities[name] = number
    return priorities


def _entries(text: str) -> list[tuple[int, list[Any]]]:
    try:
        documents = list(load_documents(text.encode()))
    except UnusableYaml as error:
        raise Invalid("priorities", "", str(error)) from None
    table = documents[0] if documents else {}
    if not isinstance(table, dict) or not all(
        isinstance(number, int) and number >= 0 and isinstance(patterns, list)
        for number, patterns in table.items()
    ):
        raise Invalid("priorities", "", "must be a map of whole numbers to lists of patterns")
    if sum(len(patterns) for patterns in table.values()) > _PATTERNS_MAX:
        raise Invalid("priorities", "", f"has more than {_PATTERNS_MAX} patterns")
    return list(table.items())
