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
@click.option("--once", is_flag=True, help="End after the tour, also in a terminal.")
@click.option(
    "--write-kubeconfig",
    "kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the kubeconfig. Default: a private folder that is removed at the end.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the dashboard. Default: 0, a free one."
)
@click.option(
    "--speed",
    type=click.FloatRange(1.1, 200),
    default=60,
    show_default=True,
    help="How many times as fast as real time the fleet lives.",
)
@click.option(
    "--chapter",
    "names",
    multiple=True,
    help="Only this chapter of the tour: from-zero, burst, stock-out, gpu-fraction, balance. Repeatable.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Form of the summary.",
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

    In a terminal the fleet then stays until Ctrl-C, for kubectl and the browser; without one, or with
    --once, it ends with the tour. The exit code is 0 only when every promise of the tour was kept.
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
