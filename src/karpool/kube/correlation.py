"""One id through one decision: every log line on its way carries it, also those of the layers below.

The id is that of the record a decision is written down in, where there is one, otherwise a fresh
one. Tasks started inside inherit it. It goes to estimators with the question, so that their lines
about it can be found too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import structlog

KEY = "decision"
# Lower case, as gRPC wants names of metadata.
HEADER = "karpool-decision"

_process = os.urandom(4).hex()
_numbers = count(1)


@contextmanager
def deciding(identity: str = "") -> Iterator[str]:
    """Lines logged inside carry the id; one decision inside another keeps its own."""
    chosen = identity or f"{_process}-{next(_numbers)}"
    with structlog.contextvars.bound_contextvars(**{KEY: chosen}):
        yield chosen


def current() -> str:
    """The id of the decision that is being taken, or nothing."""
    return str(structlog.contextvars.get_contextvars().get(KEY, ""))
