"""`karpool descheduler`: takes back replicas that cannot start, so that other clusters get them."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.scheduler.controller.options import DeschedulerOptions

if TYPE_CHECKING:
    from karpool.manager.stop import Stop
    from karpool.scheduler.descheduler.descheduler import DescheduledReplicas


def _descheduler(options: DeschedulerOptions) -> None:
    from karpool.cli import logging
    from karpool.cli.output.text import note
    from karpool.manager.shutdown import run_until_signalled
    from karpool.scheduler.descheduler_process import run

    logging.configure(options.logs.v, as_json=options.logs.logging_format == "json")

    async def serve(stop: "Stop") -> None:
        taken = _show if options.dry_run else None
        await run(options, stop, ready=lambda: note("descheduling"), taken=taken)

    run_until_signalled(serve)


def _show(taken: "DescheduledReplicas") -> None:
    from karpool.cli.output.text import emit

    emit(f"{taken.binding.key.kind} {taken.binding.key}: {taken.message}")


descheduler = controller_command(
    DeschedulerOptions,
    _descheduler,
    help_text="""Take back replicas that cannot start, so that other clusters get them.

    Asks the estimators how many replicas of each workload have been unschedulable for too long. Takes the
    flags of karmada-descheduler, and handles every kind of workload that is divided by availability.
    """,
    epilog="Example: karpool descheduler --kubeconfig karmada.yaml --unschedulable-threshold 2m",
)
