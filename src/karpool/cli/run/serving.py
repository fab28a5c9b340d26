"""Run a controller until a signal says stop."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from karpool.manager.options import InvalidOptions

if TYPE_CHECKING:
    from karpool.manager.controller import Controller
    from karpool.manager.go_options import GoLogOptions

OptionsT = TypeVar("OptionsT")


def serve(
    controller: "Controller[OptionsT]",
    options: OptionsT,
    *,
    ready: Callable[[Any], str],
    logs: "GoLogOptions | None" = None,
    reads_only: bool = False,
) -> None:
    """`ready` is what a person is told once it runs."""
    from karpool.cli import logging
    from karpool.cli.output.text import note
    from karpool.manager.manager import run_process
    from karpool.manager.shutdown import run_until_signalled

    if logs is not None:
        logging.configure(logs.v, as_json=logs.logging_format == "json")
    try:
        run_until_signalled(
            lambda stop: run_process(
                controller,
                options,
                stop,
                ready=lambda runnable: note(ready(runnable)),
                reads_only=reads_only,
            )
        )
    except InvalidOptions as error:  # what only the kubeconfig can tell
        raise click.UsageError(str(error)) from None
