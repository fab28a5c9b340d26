"""`karpool consolidator`: makes plans continuously, and carries them out."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.consolidation.execution.options import ConsolidatorOptions

if TYPE_CHECKING:
    from karpool.consolidation.execution.controller import Consolidator
    from karpool.consolidation.planning.plan import ConsolidationPlan
    from karpool.manager.stop import Stop


def _consolidator(options: ConsolidatorOptions) -> None:
    from karpool.cli.output import plan_text
    from karpool.cli.output.text import emit, note
    from karpool.consolidation.execution.plan_application import summary
    from karpool.consolidation.process import CONSOLIDATOR
    from karpool.manager.manager import run_process
    from karpool.manager.shutdown import run_until_signalled

    terms: list[Consolidator] = []

    def begun(term: "Consolidator") -> None:
        terms.append(term)
        note("consolidating")

    async def serve(stop: "Stop") -> None:
        def show(plan: "ConsolidationPlan") -> None:
            emit(plan_text.render(plan, wide=False))
            if options.once:
                stop.set()

        controller = CONSOLIDATOR.given(show=show) if options.dry_run else CONSOLIDATOR
        await run_process(controller, options, stop, ready=begun, reads_only=options.dry_run)
        if terms and options.once and not options.dry_run:
            note(summary(terms[-1].ended))

    run_until_signalled(serve)


consolidator = controller_command(
    ConsolidatorOptions,
    _consolidator,
    help_text="""Remove nodes that cost more than they are worth, within budgets, and measure savings.

    Replacement nodes start first. Every move is recorded before it starts (see `karpool get moves`),
    validated again right before each step, and rolled back if anything has changed. To stop everything:
    kubectl -n karpool-system create configmap karpool-consolidation --from-literal=stop=true
    """,
    epilog="Example: karpool consolidator --context prod --policy Balanced --dry-run --once",
)
