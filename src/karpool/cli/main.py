"""The `karpool` command, and the same commands as `kubectl karpool`.

Commands are imported when they are run, so that `--help` and completion answer at
once. Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 it went
wrong, 2 wrong usage, 3 a valid answer of "does not fit".
"""

import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from karpool import __version__
from karpool.cli.command_groups import LazyGroup, OutputClosed, Table
from karpool.cli.exit_codes import FAILURE, INTERRUPTED, KarpoolExit
from karpool.model.errors import ModelError

_COMMANDS: Table = {
    "apiserver": ("karpool.cli.embedded.apiserver", "apiserver", "Run an embedded Kubernetes API server."),
    "apply": ("karpool.cli.run.apply", "apply", "Execute a saved consolidation plan, if it is still valid."),
    "cluster": ("karpool.cli.embedded.cluster", "cluster", "Start embedded clusters."),
    "capacity": (
        "karpool.cli.inspect.capacity",
        "capacity",
        "Show whether a workload fits, now or after scale-up.",
    ),
    "catalogue": (
        "karpool.cli.inspect.catalogue",
        "catalogue",
        "Show instance types and prices by region.",
    ),
    "contract": (
        "karpool.cli.inspect.contract",
        "contract",
        "Check a contract file, and print the machines of a cluster for the contract files of others.",
    ),
    "cluster-summary": (
        "karpool.cli.run.cluster_summary",
        "cluster_summary",
        "Show an unmodified karmada-scheduler what could be launched.",
    ),
    "completion": ("karpool.cli.completion", "completion", "Print a shell completion script."),
    "consolidator": (
        "karpool.cli.run.consolidator",
        "consolidator",
        "Remove nodes that cost more than they are worth.",
    ),
    "dashboard": ("karpool.cli.run.dashboard", "dashboard", "Serve a read-only web page of the fleet."),
    "descheduler": (
        "karpool.cli.run.descheduler",
        "descheduler",
        "Remove replicas that cannot start from their cluster.",
    ),
    "estimator": (
        "karpool.cli.run.estimator",
        "estimator",
        "Tell Karmada's schedulers how many replicas fit.",
    ),
    "explain": ("karpool.cli.inspect.explain", "explain", "Explain a decision."),
    "get": ("karpool.cli.inspect.get", "get", "List promises, scale-ups or moves."),
    "gpu-agent": (
        "karpool.cli.run.gpu_agent",
        "gpu_agent",
        "Read the GPUs of this machine and publish them.",
    ),
    "gpu-scaler": (
        "karpool.cli.run.gpu_scaler",
        "gpu_scaler",
        "Allocate fractions of GPUs to pods, and request missing nodes.",
    ),
    "plan": (
        "karpool.cli.inspect.plan",
        "plan",
        "Show which nodes could be removed, the saving, and why others stay.",
    ),
    "record": (
        "karpool.cli.save.record",
        "record",
        "Record the changes of a cluster, for the simulation.",
    ),
    "scheduler": ("karpool.cli.run.scheduler", "scheduler", "Place Karmada workloads in member clusters."),
    "simulate": (
        "karpool.cli.embedded.simulate",
        "simulate",
        "Simulate a scenario: days of a fleet in seconds.",
    ),
    "snapshot": (
        "karpool.cli.save.snapshot",
        "snapshot",
        "Save the state of a cluster to a file, without Secrets.",
    ),
    "support-bundle": (
        "karpool.cli.save.support_bundle",
        "support_bundle",
        "Save a file for a bug report.",
    ),
    "schema": ("karpool.cli.schema", "schema", "Print the JSON Schemas of -o json."),
    "top": ("karpool.cli.inspect.top", "top", "Show nodes, pools and GPUs: requested, free, price."),
    "up": ("karpool.cli.embedded.up", "up", "Start a fleet with all controllers, and take a guided tour."),
    "verify-policy": (
        "karpool.cli.inspect.verify_policy",
        "verify_policy",
        "Check the properties of the Balanced consolidation policy.",
    ),
    "version": ("karpool.cli.version", "version", "Print the version."),
}


@click.group(
    cls=LazyGroup,
    table=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 success, 1 failure, 2 wrong usage, 3 a valid answer of 'does not fit'.",
)
@click.version_option(__version__, "--version", prog_name="karpool", message="%(prog)s %(version)s")
@click.option(
    "-v",
    "--verbosity",
    type=click.IntRange(0, 10),
    default=0,
    help="Log level: 0 warnings, 1 decisions, 4 everything. Default: 0.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Format of log lines. Default: text in a terminal, otherwise json.",
)
def commands(verbosity: int, log_format: str | None) -> None:
    """Plan the capacity of a fleet of Kubernetes clusters."""
    _load_structlog_alone()
    from karpool.cli import logging

    if not gc.isenabled():  # see `_start`: the command is imported by now
        gc.freeze()
        gc.enable()
    logging.configure(verbosity, as_json=None if log_format is None else log_format == "json")


def _load_structlog_alone() -> None:
    """It loads rich, where that is installed, for tracebacks that we never draw: five MiB in every
    controller, and a twentieth of its start. Who draws tables loads it as usual."""
    if "rich" not in sys.modules and "structlog" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        import structlog  # noqa: F401

        del sys.modules["rich"]


def run(arguments: Sequence[str], program: str) -> int:
    """Run one command line and return its exit code.

    What can go wrong is said in a line; a traceback means a bug in Karpool.
    """
    try:
        result: Any = commands.main(args=list(arguments), prog_name=program, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as exit_:
        return int(exit_.exit_code)
    except click.ClickException as error:
        return _complain(error)
    except (click.Abort, KeyboardInterrupt):
        _say_what_ended(arguments, program)
        return INTERRUPTED
    except OutputClosed:
        # `karpool top | head`: nothing is wrong, and nothing more can be said. What is still buffered
        # would raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _explain(error)


def _say_what_ended(arguments: Sequence[str], program: str) -> None:
    from karpool.cli.output.text import note

    command = next((word for word in arguments if word in _COMMANDS), "")
    note(f"interrupted: {program}{(f' {command}' if command else '')} did not finish")


def _complain(error: click.ClickException) -> int:
    from karpool.cli.output.text import emit

    shown = io.StringIO()
    error.show(file=shown)
    emit(shown.getvalue().rstrip("\n"), err=True)
    return error.exit_code


def _explain(error: Exception) -> int:
    """Say what went wrong, if it is something that goes wrong; otherwise it is a bug."""
    from karpool.cli.output.text import note
    from karpool.kube.errors import KubeError

    while isinstance(error, ExceptionGroup):  # of a task group; its first error is the cause
        error = error.exceptions[0]
    if not isinstance(error, KarpoolExit | ModelError | KubeError | OSError):
        raise error
    if str(error):
        note(f"error: {error}")
    return error.code if isinstance(error, KarpoolExit) else FAILURE


def karpool() -> None:
    _start("karpool")


def kubectl_karpool() -> None:
    _start("kubectl karpool")


def _start(program: str) -> None:
    """Modules are no garbage: not looking for any while they are imported saves a seventh of it, and
    not looking through them ever after saves a little each time."""
    gc.disable()
    sys.exit(run(sys.argv[1:], program))


def kubectl_complete_karpool() -> None:
    from karpool.cli.completion import for_kubectl

    click.echo(for_kubectl(commands, sys.argv[1:]))


if __name__ == "__main__":
    karpool()
