"""`karpool scheduler`: places Karmada's workloads, beside or in place of karmada-scheduler."""

from typing import Any

import click

from karpool.cli import logging
from karpool.cli.options.karmada import SPELLING, parameters, values
from karpool.cli.output.text import note
from karpool.manager.shutdown import run_until_signalled
from karpool.manager.stop import Stop
from karpool.scheduler.controller.options import SCHEDULER_FLAGS, validate
from karpool.scheduler.cycle.decision import SchedulingDecision
from karpool.scheduler.cycle.explanation import line
from karpool.scheduler.process import run


def _scheduler(**given: Any) -> None:
    chosen = values(SCHEDULER_FLAGS, given)
    logging.configure(chosen["v"], as_json=chosen["logging-format"] == "json")
    if errors := validate(SCHEDULER_FLAGS, chosen):
        raise click.UsageError("\n".join(errors))

    async def serve(stop: Stop) -> None:
        await run(
            chosen,
            stop,
            ready=lambda: note(f"scheduling for {chosen['scheduler-name']}"),
            decided=_show if chosen["dry-run"] else None,
        )

    run_until_signalled(serve)


def _show(decision: SchedulingDecision) -> None:
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
