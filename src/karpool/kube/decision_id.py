"""Decision ids: every log line of one decision carries the same id, including lines of lower layers.

If the decision has a record, its id is the record's; otherwise it is new. Tasks started inside inherit the
id. Requests to estimators carry it, so that their log lines can be found too.
"""

import os
from collections.abc import MutableMapping
from contextvars import ContextVar, Token
from itertools import count
from typing import Any

KEY = "decision"
# Lower case, because gRPC requires it for metadata keys.
HEADER = "karpool-decision"

_process = os.urandom(4).hex()
_numbers = count(1)
_current: ContextVar[str] = ContextVar(KEY, default="")


class decision_scope:  # noqa: N801 - read as a word: `with decision_scope():`
    """Log lines inside carry the id; a nested decision has its own id."""

    __slots__ = ("_before", "identity")

    def __init__(self, identity: str = "") -> None:
        self.identity = identity or f"{_process}-{next(_numbers)}"

    def __enter__(self) -> str:
        self._before: Token[str] = _current.set(self.identity)
        return self.identity

    def __exit__(self, *_: object) -> None:
        _current.reset(self._before)


def current() -> str:
    """Return the id of the current decision, or an empty string."""
    return _current.get()


def add_to_line(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the id to a log line (a structlog processor). An id that the line already has is kept."""
    if current := _current.get():
        line.setdefault(KEY, current)
    return line
