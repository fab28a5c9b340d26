"""Settings for every test: properties without deadlines, and log lines only from warnings up."""

import asyncio
import logging
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# The machine may be busy; how long an example takes says nothing about whether it is right.
settings.register_profile("karpool", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change is judged by the same examples every time; new ones are looked for on purpose (`make explore`).
settings.register_profile("same", settings.get_profile("karpool"), derandomize=True)
settings.load_profile("karpool" if os.environ.get("KARPOOL_EXPLORE") else "same")

structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ],
    wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
)


@pytest.fixture(autouse=True)
def log_lines_as_they_were() -> Iterator[None]:
    """Commands set logging up as their flags say; the next test is not about that."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


# Up to Python 3.11 asking for "the" event loop of the main thread creates one, once. A plugin
# asks before one is set and nobody closes what it got, which would fail some later test with
# an unclosed loop. Saying that there is none prevents it.
asyncio.set_event_loop(None)
