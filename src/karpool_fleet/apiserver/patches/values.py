"""Decoded JSON as values: copies that share nothing, and equality as JSON means it.

Python holds that `True == 1`; JSON does not, and a patch or an apply that turns one
into the other is a change. Numbers are equal when their values are (1 and 1.0).
"""

from typing import Any


def copied(value: Any) -> Any:
    """A deep copy of a JSON value; dicts and lists are new, the rest is immutable."""
    kind = type(value)
    if kind is dict:
        return {
            name: copied(member) if type(member) is dict or type(member) is list else member
            for name, member in value.items()
        }
    if kind is list:
        return [copied(item) if type(item) is dict or type(item) is list else item for item in value]
    return value


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; member order does not matter, item order does."""
    if left is right:
        return True
    kind = type(left)
    if kind is dict:
        return (
            type(right) is dict
            and len(left) == len(right)
            and all(name in right and same(member, right[name]) for name, member in left.items())
        )
    if kind is list:
        return type(right) is list and len(left) == len(right) and all(map(same, left, right))
    if kind is bool or type(right) is bool:
        return False
    return bool(left == right)
