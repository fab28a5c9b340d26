"""`karpool dashboard`: a web page of the fleet, for looking only."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.dashboard.options import DashboardOptions

if TYPE_CHECKING:
    from karpool.dashboard.server.app import Dashboard, ServedDashboard


def _dashboard(options: DashboardOptions) -> None:
    from karpool.cli.run.serving import serve
    from karpool.dashboard.process import DASHBOARD, show_file  # imports all capabilities

    if options.snapshot is not None:
        from karpool.cli.output.text import note
        from karpool.manager.shutdown import run_until_signalled

        def told(page: "ServedDashboard") -> None:
            note(f"{', '.join(page.collector.watches)}: open {page.link}")

        run_until_signalled(lambda stop: show_file(options, stop, told))
        return

    def link(page: "Dashboard") -> str:
        assert page.served is not None, "prepared"
        shown = page.served.link if options.token_file is None else page.served.url
        return f"{', '.join(page.collector.watches)}: open {shown}"

    serve(DASHBOARD, options, ready=link)


dashboard = controller_command(
    DashboardOptions,
    _dashboard,
    help_text="""Serve a web page of the fleet: nodes and prices, placements, promises, scale-ups,
    consolidation and events.

    Only reads, and needs no database and no external files. On loopback it needs no token; on other
    addresses it requires one. /openapi.json describes its JSON API.
    """,
    epilog="Examples: karpool dashboard --kubeconfig fleet.yaml --all-contexts;  "
    "karpool dashboard --snapshot prod.karpool.gz",
)
