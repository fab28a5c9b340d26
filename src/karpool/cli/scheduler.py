"""`karpool scheduler`: places Karmada's workloads, beside or in place of karmada-scheduler."""

import asyncio
from typing import Any

import click

from karpool.cli import logs
from karpool.cli.go_flags import SPELLING, parameters, values
from karpool.cli.output import note
from karpool.cli.serving import run_until_stopped
from karpool.scheduler.decision import Decision
from karpool.scheduler.explanation import line
from karpool.scheduler.options import SCHEDULER_FLAGS, validate
from karpool.scheduler.process import run


def _scheduler(**given: Any) -> None:
    chosen = values(SCHEDULER_FLAGS, given)
    logs.configure(chosen["v"], as_json=chosen["logging-format"] == "json")
    if errors := validate(SCHEDULER_FLAGS, chosen):
        raise click.UsageError("\n".join(errors))

    async def serve(stop: asyncio.Event) -> None:
        await run(
            chosen,
            stop,
            ready=lambda: note(f"scheduling for {chosen['scheduler-name']}"),
            decided=_show if chosen["dry-run"] else None,
        )

    run_until_stopped(serve)


def _show(decision: Decision) -> None:
    click.echo(line(decision))


scheduler = click.Command(
    "scheduler",
    callback=_scheduler,
    params=parameters(SCHEDULER_FLAGS),
    context_settings=SPELLING,
    help="""Place Karmada's workloads in member clusters.

    Schedules the bindings of policies that name it as schedulerName, with Karmada's semantics, and promises
    each place only once. Takes the flags of karmada-scheduler.
    """,
    epilog="Example: karpool scheduler --kubeconfig karmada.yaml --enable-scheduler-estimator --dry-run",
)
