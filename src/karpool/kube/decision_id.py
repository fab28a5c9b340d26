"""One id through one decision: every log line on its way carries it, also those of the layers below.

The id is that of the record a decision is written down in, where there is one, otherwise a fresh
one. Tasks started inside inherit it. It goes to estimators with the question, so that their lines
about it can be found too.
"""

import os
from collections.abc import MutableMapping
from contextvars import ContextVar, Token
from itertools import count
from typing import Any

KEY = "decision"
# Lower case, as gRPC wants names of metadata.
HEADER = "karpool-decision"

_process = os.urandom(4).hex()
_numbers = count(1)
_current: ContextVar[str] = ContextVar(KEY, default="")


class decision_scope:  # noqa: N801 - read as a word: `with decision_scope():`
    """Lines logged inside carry the id; one decision inside another keeps its own."""

    __slots__ = ("_before", "identity")

    def __init__(self, identity: str = "") -> None:
        self.identity = identity or f"{_process}-{next(_numbers)}"

    def __enter__(self) -> str:
        self._before: Token[str] = _current.set(self.identity)
        return self.identity

    def __exit__(self, *_: object) -> None:
        _current.reset(self._before)


def current() -> str:
    """The id of the decision that is being taken, or nothing."""
    return _current.get()


def add_to_line(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for structlog. What a line says itself counts more."""
    if current := _current.get():
        line.setdefault(KEY, current)
    return line
