"""`karpool scheduler`: places Karmada's workloads, beside or in place of karmada-scheduler."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.scheduler.controller.options import SchedulerOptions

if TYPE_CHECKING:
    from karpool.manager.stop import Stop
    from karpool.scheduler.cycle.decision import SchedulingDecision


def _scheduler(options: SchedulerOptions) -> None:
    from karpool.cli import logging
    from karpool.cli.output.text import note
    from karpool.manager.shutdown import run_until_signalled
    from karpool.scheduler.process import run

    logging.configure(options.logs.v, as_json=options.logs.logging_format == "json")

    async def serve(stop: "Stop") -> None:
        await run(
            options,
            stop,
            ready=lambda: note(f"scheduling for {options.scheduler_name}"),
            decided=_show if options.dry_run else None,
        )

    run_until_signalled(serve)


def _show(decision: "SchedulingDecision") -> None:
    from karpool.cli.output.text import emit
    from karpool.scheduler.cycle.explanation import line

    emit(line(decision))


scheduler = controller_command(
    SchedulerOptions,
    _scheduler,
    help_text="""Place Karmada's workloads in member clusters.

    Schedules the bindings of policies that name it as schedulerName, with Karmada's semantics, and promises
    each place only once. Takes the flags of karmada-scheduler.
    """,
    epilog="Example: karpool scheduler --kubeconfig karmada.yaml --enable-scheduler-estimator --dry-run",
)
