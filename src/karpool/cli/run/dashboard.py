"""`karpool dashboard`: a web page of the fleet, for looking only."""

from karpool.cli.options.parameters import controller_command
from karpool.dashboard.options import DashboardOptions


def _dashboard(options: DashboardOptions) -> None:
    from karpool.cli.run.dashboard_server import serve_dashboard  # imports all capabilities

    serve_dashboard(options)


dashboard = controller_command(
    DashboardOptions,
    _dashboard,
    help_text="""Serve a web page of the fleet: nodes and prices, placements, promises, scale-ups,
    consolidation and events.

    Reads only, and needs nothing else: no database, no files from elsewhere. On loopback everybody may look;
    elsewhere it asks for a token. The JSON API behind the page describes itself at /openapi.json.
    """,
    epilog="Example: karpool dashboard --kubeconfig fleet.yaml --all-contexts",
)
