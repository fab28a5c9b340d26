"""`karpool scheduler`: places Karmada's workloads, beside or in place of karmada-scheduler."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.scheduler.controller.options import SchedulerOptions

if TYPE_CHECKING:
    from karpool.scheduler.cycle.decision import SchedulingDecision


def _scheduler(options: SchedulerOptions) -> None:
    from karpool.cli.run.serving import serve
    from karpool.scheduler.process import SCHEDULER

    serve(
        SCHEDULER.given(show=_show) if options.dry_run else SCHEDULER,
        options,
        ready=lambda scheduler: f"scheduling for {options.scheduler_name}",
        logs=options.logs,
        reads_only=options.dry_run,
    )


def _show(decision: "SchedulingDecision") -> None:
    from karpool.cli.output.text import emit
    from karpool.scheduler.cycle.explanation import line

    emit(line(decision))


scheduler = controller_command(
    SchedulerOptions,
    _scheduler,
    help_text="""Place Karmada workloads in member clusters.

    Schedules the bindings of policies with its schedulerName, with Karmada's semantics, and promises
    capacity only once. Accepts the flags of karmada-scheduler.
    """,
    epilog="Example: karpool scheduler --kubeconfig karmada.yaml --enable-scheduler-estimator --dry-run",
)
