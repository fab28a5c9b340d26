"""`karpool descheduler`: takes back replicas that cannot start, so that other clusters get them."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.scheduler.controller.options import DeschedulerOptions

if TYPE_CHECKING:
    from karpool.scheduler.descheduler.descheduler import DescheduledReplicas


def _descheduler(options: DeschedulerOptions) -> None:
    from karpool.cli.run.serving import serve
    from karpool.scheduler.descheduler_process import DESCHEDULER

    serve(
        DESCHEDULER.given(show=_show) if options.dry_run else DESCHEDULER,
        options,
        ready=lambda descheduler: "descheduling",
        logs=options.logs,
        reads_only=options.dry_run,
    )


def _show(taken: "DescheduledReplicas") -> None:
    from karpool.cli.output.text import emit

    emit(f"{taken.binding.key.kind} {taken.binding.key}: {taken.message}")


descheduler = controller_command(
    DeschedulerOptions,
    _descheduler,
    help_text="""Remove replicas that cannot start, so that the scheduler places them elsewhere.

    Asks estimators how many replicas of each workload have been unschedulable for too long. Accepts the
    flags of karmada-descheduler, and handles every kind of workload that is divided by availability.
    """,
    epilog="Example: karpool descheduler --kubeconfig karmada.yaml --unschedulable-threshold 2m",
)
