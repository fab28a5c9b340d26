"""Runs asynchronous code for synchronous callers, also inside a notebook, whose event loop is running."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import structlog

from karpool.api.answers import KarpoolError
from karpool.cli.exit_codes import KarpoolExit
from karpool.kube.errors import KubeError
from karpool.model.errors import ModelError

T = TypeVar("T")


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    return outside_loops(lambda: asyncio.run(coroutine))


def outside_loops(call: Callable[[], T]) -> T:
    """Run `call` in this thread, or in another thread if this one runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise every error of a command as KarpoolError; log only if the caller has configured logging."""
    quiet = not structlog.is_configured()
    if quiet:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    except click.ClickException as error:
        raise KarpoolError(error.format_message()) from error
    except (KarpoolExit, ModelError, KubeError, OSError) as error:
        raise KarpoolError(str(error)) from error
    finally:
        if quiet:
            structlog.reset_defaults()
