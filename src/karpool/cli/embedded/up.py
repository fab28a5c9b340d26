"""`karpool up`: a fleet, all controllers, a guided tour and a web page, in one command.

What it needs takes a second to import; something is said before that.
"""

import logging
import sys
from pathlib import Path

import click
import structlog

from karpool.cli.embedded.private_folder import private_folder
from karpool.cli.output.text import note


@click.command(epilog="Example: karpool up --once -o json")
@click.option("--once", is_flag=True, help="Exit after the tour, also in a terminal.")
@click.option(
    "--write-kubeconfig",
    "kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the kubeconfig to this file. Default: a private folder that is deleted at the end.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the dashboard. Default: 0, a free port."
)
@click.option(
    "--speed",
    type=click.FloatRange(1.1, 200),
    default=60,
    show_default=True,
    help="Speed of the clock, as a multiple of real time.",
)
@click.option(
    "--chapter",
    "names",
    multiple=True,
    help="Run only this chapter of the tour: from-zero, burst, stock-out, gpu-fraction, balance. Repeatable.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Format of the summary.",
)
@click.pass_context
def up(
    context: click.Context,
    once: bool,
    kubeconfig: Path | None,
    port: int,
    speed: float,
    names: tuple[str, ...],
    output: str,
) -> None:
    """Start a fleet of four clusters with all of Karpool's controllers, and show what they do.

    In a terminal the fleet keeps running until Ctrl-C, for kubectl and the browser. Without a terminal, or
    with --once, it ends after the tour. The exit code is 0 only if every promise of the tour was kept.
    """
    note("starting a fleet of four clusters, simulated clouds, and Karpool's controllers ...")
    _keep_quiet(context)
    from karpool.cli.embedded.tour import TourOptions, chapters_named, run

    stays = not once and sys.stdin.isatty() and sys.stdout.isatty()
    wishes = TourOptions(stays, port, speed, chapters_named(names), output)
    if kubeconfig is not None:
        run(kubeconfig, wishes)
        return
    with private_folder("karpool-up-") as folder:
        run(folder / "kubeconfig", wishes)


def _keep_quiet(context: click.Context) -> None:
    """Whoever looks at a tour does not look for log lines; with -v they are there."""
    asked = context.parent.params.get("verbosity") if context.parent is not None else 0
    if not asked:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
