"""`karpool descheduler`: takes back replicas that cannot start, so that other clusters get them."""

from typing import Any

import click

from karpool.cli import logging
from karpool.cli.options.karmada import SPELLING, parameters, values
from karpool.cli.output.text import note
from karpool.manager.shutdown import run_until_signalled
from karpool.manager.stop import Stop
from karpool.scheduler.controller.options import DESCHEDULER_FLAGS, validate
from karpool.scheduler.descheduler.descheduler import DescheduledReplicas
from karpool.scheduler.descheduler_process import run


def _descheduler(**given: Any) -> None:
    chosen = values(DESCHEDULER_FLAGS, given)
    logging.configure(chosen["v"], as_json=chosen["logging-format"] == "json")
    if errors := validate(DESCHEDULER_FLAGS, chosen):
        raise click.UsageError("\n".join(errors))

    async def serve(stop: Stop) -> None:
        await run(
            chosen,
            stop,
            ready=lambda: note("descheduling"),
            taken=_show if chosen["dry-run"] else None,
        )

    run_until_signalled(serve)


def _show(taken: DescheduledReplicas) -> None:
    click.echo(f"{taken.binding.key.kind} {taken.binding.key}: {taken.message}")


descheduler = click.Command(
    "descheduler",
    callback=_descheduler,
    params=parameters(DESCHEDULER_FLAGS),
    context_settings=SPELLING,
    help="""Take back replicas that cannot start, so that other clusters get them.

    Asks the estimators how many replicas of each workload have been unschedulable for too long. Takes the
    flags of karmada-descheduler, and handles every kind of workload that is divided by availability.
    """,
    epilog="Example: karpool descheduler --kubeconfig karmada.yaml --unschedulable-threshold 2m",
)
