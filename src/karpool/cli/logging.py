"""Where log lines go: stderr, as text in a terminal, as one JSON object a line otherwise.

Keys of a line: `ts`, `level`, `logger`, `msg`, `decision` (see kube/correlation), and what the line is about.
"""

import logging
import sys
from typing import Any

import structlog

from karpool.cli.output.text import printable_lines
from karpool.kube import decision_id

_LEVELS = (logging.WARNING, logging.INFO, logging.INFO, logging.INFO, logging.DEBUG)


def configure(verbosity: int, *, as_json: bool | None = None) -> None:
    """`verbosity` counts as Kubernetes does: 0 warnings, 1 to 3 decisions, 4 and more every stage."""
    renderers: list[Any]
    if as_json if as_json is not None else not sys.stderr.isatty():
        renderers = [
            structlog.processors.dict_tracebacks,
            structlog.processors.EventRenamer("msg"),
            structlog.processors.JSONRenderer(),
        ]
    else:
        plain = structlog.dev.plain_traceback
        renderers = [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain), _printable]
    structlog.configure(
        processors=[
            decision_id.add_to_line,
            structlog.processors.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", key="ts"),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[min(verbosity, len(_LEVELS) - 1)]),
        # Made for each line: whoever redirects stderr later gets the lines as well.
        logger_factory=_NamedLogger,
        cache_logger_on_first_use=False,
    )


def _printable(logger: Any, method: str, line: str) -> str:
    return printable_lines(line)


class _NamedLogger(structlog.WriteLogger):
    """Knows the module that logs."""

    def __init__(self, name: str = "karpool") -> None:
        super().__init__(sys.stderr)
        self.name = name
